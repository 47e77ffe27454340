-- opic: the server side of cash transfers (the client side is opic/replica/batch.py).
--
-- A shard is a journal with checkpoints, under one hash tag; opic/store/keys.py declares its keys.
--
-- Rules that keep it exact:
--   A function runs atomically, but its writes are not rolled back when it fails. So all checks come before the first
--   write. Records are opaque here: no amount passes through a Lua number, which is a double.
--   Every key is passed in KEYS, in any order, so that a cluster refuses a call before it starts, not in its middle. A
--   function finds keys by their names: keys.journal, keys['out:3'].
-- At load time there are no globals, not even `string`: only syntax and registrations are allowed at the top level.

local VALUES_MAX = 7000    -- unpack() takes fewer than 8,000.
local BALANCE = 9007199254740992  -- 2^53
local end_leases, end_waits, in_chunks, note_addresses  -- See back_offs.lua.

local function whole(n, least, most)
  return type(n) == 'number' and n == math.floor(n) and n >= least and n < most
end

-- A function that takes its keys by their names without the hash tag, which is one in all keys of a call.
local function by_name(call)
  return function(names, args)
    local keys, first = {}, (string.find(names[1], '}:', 1, true) or 0) + 2
    for i = 1, #names do keys[string.sub(names[i], first)] = names[i] end
    return call(keys, args)
  end
end

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The refusal of a write to a shard until `stop` of its head (us): its crawl is moved to another; nil if nothing stops it.
local function refused(stop)
  if not stop or tonumber(stop) <= now_us() then return nil end
  return redis.error_reply('OPICSTOPPED the crawl is being moved to another one, or was')
end

local function stopped(keys)
  return keys.head and refused(redis.call('HGET', keys.head, 'stop'))
end

-- Compare the head with the one that the caller expects: nil if equal, else {'HEAD', lsn, digest}; a stopped one is refused.
local function moved(head, lsn, digest)
  local there = redis.call('HMGET', head, 'lsn', 'digest', 'stop')
  local refusal = refused(there[3])
  if refusal then return refusal end
  if (there[1] or '0') == lsn and (there[2] or digest) == digest then return nil end
  return {'HEAD', there[1] or '0', there[2] or ''}
end

-- The time (microseconds) until which a backup holds a shard; nil if none does.
local function held(offsets)
  local hold = tonumber(redis.call('HGET', offsets, 'hold') or 0) or 0
  return hold > now_us() and string.format('%.0f', hold) or nil
end

-- opic_5_init: create a shard, once.  KEYS meta books   ARGV meta-blob books-blob (flat field, value lists)
-- Returns 1 if it was created, 0 if it existed.
local function init(keys, args)
  local meta, books = cmsgpack.unpack(args[1]), cmsgpack.unpack(args[2])
  if redis.call('EXISTS', keys.meta) == 1 then return 0 end
  redis.call('HSET', keys.meta, unpack(meta))
  redis.call('HSET', keys.books, unpack(books))
  return 1
end

-- Why the log of a crawl takes no record: nil if it does; {'CLOSED'} while a backup is restored or checked for that;
-- {'ERA'} if a backup has been restored since the caller read `era`, '*' if it has read none. The second result is the
-- present era: offsets of the log, of partitions and of outboxes are valid in one era.
local function closed(meta, era)
  local found = redis.call('HMGET', meta, 'restoring', 'closed', 'era')
  local present = found[3] or ''
  if found[1] or (tonumber(found[2] or 0) or 0) > now_us() then return {'CLOSED'}, present end
  if era ~= '*' and era ~= present then return {'ERA'}, present end
  return nil, present
end

-- opic_5_step: append the effect of a batch of events to the journal, exactly once and atomically.
--   KEYS head journal books offsets dead leases waits fails changes sent seen pagemeta metrics urls, outboxes ..; since if it
--     gets entries; holders if there are senders; addresses; all keys of pages if pages are forgotten
--   ARGV expected-lsn expected-digest new-lsn new-digest record retry-seconds blob most-pages-in-waits letter-bytes-max
--     meta-bytes-max
--   blob: a map of the lists in SHAPES, and `forget`, the time before which calls are forgotten; `since`, a string
-- Returns {'OK'}, or a refusal: {'HEAD', lsn, digest}, {'OFFSET', partition, next}, {'FULL', shard}, {'PAUSED', until}:
-- a backup holds deliveries from other shards. A head equal to the caller's new one is success: the reply was lost.
local OUTBOX_MAX = 20000  -- Entries of a few kilobytes: enough for a shard that is unavailable for an hour.
local SINCE_BYTES = 1000

local function text(value) return type(value) == 'string' end
local function number(value) return type(value) == 'number' end
local function total(value) return text(value) and string.find(value, '^%-?%d+$') ~= nil end
local function page(value) return whole(value, 0, BALANCE) end

local function pages(values)
  if type(values) ~= 'table' then return false end
  for _, value in ipairs(values) do
    if not whole(value, -BALANCE, BALANCE) then return false end
  end
  return true
end

-- The lists of the blob: of what their elements are, in turn.
local SHAPES = {
  advances = {text, text, text},        -- source/partition, expected offset, next offset
  totals = {text, total},               -- field, its value
  fetches = {page, number, number},     -- id, 1 if it failed, time (seconds)
  letters = {text, text, text, text, text, text},  -- dead letters; see `keep_letters`
  outboxes = {text, text, text, text},  -- shard, number, previous digest, entry
  calls = {number, text},               -- time of the record, name
  metas = {text, pages},                -- metadata, '' for none, and its pages
  senders = {number, text},             -- of each fetch: when it was made or reported (us), its crawler's digest or ''
  asked = {number, number},             -- number of a failed fetch that asks for a wait, seconds
  revived = {page},                     -- pages whose back-offs end after that
  forgotten = {page},                   -- pages to forget
  addresses = {text, text},             -- host, the address that was reported of it, '' to forget the one before
  again = {page, text},                 -- id and URL of a page that was forgotten and is known again
}

-- Whether any partition is an outbox of another shard or the grants: only those have a colon in their names.
local function own(advances)
  for i = 1, #advances, 3 do
    if string.find(advances[i], ':', 1, true) then return true end
  end
  return false
end

-- The name of a list that is not as SHAPES says; nil if there is none.
local function misshapen(blob)
  for name, shape in pairs(SHAPES) do
    local list, of = blob[name], #shape
    if type(list) ~= 'table' or #list % of ~= 0 then return name end
    for at, is in ipairs(shape) do
      for i = at, #list, of do
        if not is(list[i]) then return name end
      end
    end
  end
  return nil
end

local function check_outboxes(keys, outboxes)
  for i = 1, #outboxes, 4 do
    local outbox = keys['out:' .. outboxes[i]]
    if not outbox then return redis.error_reply('OPICARGS keys do not match blob') end
    if redis.call('XLEN', outbox) >= OUTBOX_MAX then return {'FULL', outboxes[i]} end
    if (redis.call('HGET', keys.sent, outboxes[i]) or '0') ~= outboxes[i + 1] then
      return redis.error_reply('OPICARGS an outbox does not match the journal')
    end
  end
  return nil
end

-- Whether the keys of pages, which a call that forgets some must pass, are there.
local function all_of_pages(keys)
  for name in pairs(OF_PAGES) do
    if not keys[name] then return false end
  end
  return true
end

local function check_step(keys, args, blob)
  local wrong, numbers = misshapen(blob), tonumber(args[6]) and tonumber(args[9]) and tonumber(args[10])
  if wrong or not numbers or not number(blob.forget) or not text(blob.since) or #args[5] == 0 then
    return redis.error_reply('OPICARGS bad ' .. (wrong or 'record, since, retry, limits or time'))
  end
  for i = 1, #blob.advances, 3 do
    local next_offset = redis.call('HGET', keys.offsets, blob.advances[i]) or '0'
    if next_offset ~= blob.advances[i + 1] then return {'OFFSET', blob.advances[i], next_offset} end
  end
  local hold = own(blob.advances) and held(keys.offsets)
  if hold then return {'PAUSED', hold} end
  if not keys.changes or #blob.forgotten > 0 and not all_of_pages(keys) or #blob.since > 0 and not keys.since
    or #blob.addresses > 0 and not keys.addresses
    or (keys.holders or #blob.senders > 0) and (not keys.holders or #blob.senders ~= #blob.fetches / 3 * 2) then
    return redis.error_reply('OPICARGS keys do not match blob')
  end
  return check_outboxes(keys, blob.outboxes)
end

-- Delete what is kept of pages by their ids, apart from the journal's replicas. Their metadata goes with `metas`.
local function forget_pages(keys, pages)
  for name, how in pairs(OF_PAGES) do
    local ids = {}
    for i, page in ipairs(pages) do ids[i] = string.format('%.0f', how[2] > 0 and page % how[2] or page) end
    in_chunks(ids, function(_, ...) redis.call(how[1], keys[name], ...) end)
  end
end

-- Add entries to the last field of `since`, or to a new one, so that no write is large.
local function note_since(key, entries)
  local count = redis.call('HLEN', key)
  local last = count > 0 and redis.call('HGET', key, count - 1) or ''
  if count == 0 or #last >= SINCE_BYTES then count, last = count + 1, '' end
  redis.call('HSET', key, count - 1, last .. entries)
end

local function step(keys, args)
  local other = moved(keys.head, args[1], args[2])
  if other then return other[2] == args[3] and other[3] == args[4] and {'OK'} or other end
  local blob = cmsgpack.unpack(args[7])
  blob.addresses = blob.addresses or {}  -- A worker of an earlier release passes none.
  local refusal = check_step(keys, args, blob)
  if refusal then return refusal end

  redis.call('XADD', keys.journal, args[3] .. '-0', 'r', args[5])
  redis.call('HSET', keys.head, 'lsn', args[3], 'digest', args[4])
  for i = 1, #blob.advances, 3 do redis.call('HSET', keys.offsets, blob.advances[i], blob.advances[i + 2]) end
  redis.call('HSET', keys.books, unpack(blob.totals))
  end_leases(keys, blob.fetches, blob.senders, tonumber(args[6]), tonumber(args[8]), blob.asked, args[3])
  end_waits(keys, blob.revived)
  note_addresses(keys, blob.addresses, args[3])
  keep_letters(keys, blob.letters, tonumber(args[9]))
  for i = 1, #blob.outboxes, 4 do
    local to, number, previous, entry = unpack(blob.outboxes, i, i + 3)
    redis.call('HINCRBY', keys.sent, to, 1)
    redis.call('XADD', keys['out:' .. to], '1-' .. number, 'p', previous, 'v', entry)
  end
  keep_metas(keys, blob.metas, tonumber(args[10]))
  local calls, again = blob.calls, blob.again
  for i = 1, #calls, 2 do redis.call('ZADD', keys.seen, string.format('%.0f', calls[i]), calls[i + 1]) end
  if #blob.forgotten > 0 then
    forget_pages(keys, blob.forgotten)
    redis.call('HSET', keys.head, 'forgot', args[3])
  end
  for i = 1, #again, 2 do redis.call('HSET', keys.urls, string.format('%.0f', again[i]), again[i + 1]) end
  if #blob.since > 0 then note_since(keys.since, blob.since) end
  if #calls > 0 then redis.call('ZREMRANGEBYSCORE', keys.seen, '-inf', string.format('%.0f', blob.forget)) end
  return {'OK'}
end

-- opic_5_blocks: write blocks of the checkpoint, as of the head.
--   KEYS head, blocks ..   ARGV expected-lsn expected-digest, then for each block: number of values, field, value ..
-- Returns {'OK'} or {'HEAD', lsn, digest}.
local function blocks(keys, args)
  local other = moved(keys[1], args[1], args[2])
  if other then return other end
  local at = 3
  for i = 2, #keys do
    local count = tonumber(args[at])
    if not whole(count, 2, VALUES_MAX) or count % 2 ~= 0 or not args[at + count] then
      return redis.error_reply('OPICARGS bad block')
    end
    at = at + count + 1
  end
  at = 3
  for i = 2, #keys do
    local count = tonumber(args[at])
    redis.call('HSET', keys[i], unpack(args, at + 1, at + count))
    at = at + count + 1
  end
  return {'OK'}
end

-- opic_5_links: write and delete segments of kept links, as of the head. It names the write before it.
--   KEYS head linkseg   ARGV expected-lsn expected-digest expected-v   number of fields to delete, field ..
--     field, value ..
-- Returns {'OK'}, {'HEAD', lsn, digest} or {'V', v}.
local function links(keys, args)
  local other = moved(keys.head, args[1], args[2])
  if other then return other end
  local v = redis.call('HGET', keys.linkseg, 'v') or '0'
  if v ~= args[3] then return {'V', v} end
  local deleted = tonumber(args[4])
  local first = whole(deleted, 0, VALUES_MAX) and 5 + deleted
  local values = first and #args - first + 1
  if not first or values < 2 or values > VALUES_MAX or values % 2 ~= 0 then return redis.error_reply('OPICARGS bad segments') end
  if deleted > 0 then redis.call('HDEL', keys.linkseg, unpack(args, 5, 4 + deleted)) end
  redis.call('HSET', keys.linkseg, unpack(args, first))
  return {'OK'}
end

-- opic_5_trim: trim the journal's records below `least`, but never the last record, nor one that a backup still needs.
--   KEYS head journal copied   ARGV expected-lsn expected-digest least blank
-- All blocks are blank of the URLs of pages that records up to `blank` forgot; the journal has none of these URLs if it
-- begins with the record that forgot the last of them. Trimming frees memory, so it is allowed when the server is out
-- of memory. Returns {'OK', the first record that may be left} or {'HEAD', lsn, digest}.
local function trim(keys, args)
  local other = moved(keys.head, args[1], args[2])
  if other then return other end
  local least = math.min(tonumber(args[3]), tonumber(args[1]), tonumber(redis.call('GET', keys.copied) or args[1]) + 1)
  redis.call('XTRIM', keys.journal, 'MINID', string.format('%.0f-0', least))
  local forgot = tonumber(redis.call('HGET', keys.head, 'forgot') or 0)
  if forgot > 0 and forgot <= math.min(tonumber(args[4]), least) then redis.call('HDEL', keys.head, 'forgot') end
  return {'OK', string.format('%.0f', least)}
end

-- opic_5_trim_outbox: trim entries of an outbox that have taken effect, unless a backup was restored since they did.
--   KEYS out:<to> meta   ARGV to offset era
local function trim_outbox(keys, args)
  if closed(keys.meta, args[3]) then return 0 end
  return redis.call('XTRIM', keys['out:' .. args[1]], 'MINID', '1-' .. args[2])
end

-- opic_5_resume: move a partition's resume point forward, unless it is below `least`.
--   KEYS resume meta; a crawl of one shard has its resume points in `offsets`, which it passes instead
--   ARGV source/partition next-offset least era shard offset shard offset ..; a `least` of -1 also allows moving it back
-- The fields source/partition@shard record the partition's next offset in each shard. If a shard is later found below
-- its field, the shard's server lost writes.
-- Returns the previous resume point. If it is below `least`, a server lost writes, and the records in between were not
-- read again yet. 'ERA' if a backup is being restored, or was restored since `era` was read.
local function resume(keys, args)
  local points = keys.resume or keys.offsets
  if closed(keys.meta, args[4]) then return 'ERA' end
  local now = redis.call('HGET', points, args[1]) or '0'
  local at, to, least = tonumber(now), tonumber(args[2]), tonumber(args[3])
  if least == -1 or (at >= least and to > at) then
    redis.call('HSET', points, args[1], args[2])
    for i = 5, #args, 2 do redis.call('HSET', points, args[1] .. '@' .. args[i], args[i + 1]) end
  end
  return now
end

-- The id of the last entry that tells of a change; others mark where an endpoint begins to read.
local function last_change(key)
  for _, entry in ipairs(redis.call('XREVRANGE', key, '+', '-', 'COUNT', 100)) do
    if #entry[2] > 4 then return entry[1] end
  end
  return ''
end

-- opic_5_stop: refuse all writes to a shard for a while, if it is as the caller saw it; 0 seconds end that.
--   KEYS head changes end   ARGV token seconds what-was-seen ('' for anything)
-- Returns {what is there: the LSN, the digest, the last change, the end of the log}, preceded by 'OK'; 'SEEN' if that is
-- not what the caller saw; 'OTHER' if another token stops the shard.
local function stop(keys, args)
  local there, now = redis.call('HMGET', keys.head, 'lsn', 'digest', 'stop', 'stopper'), now_us()
  local ended = redis.call('GET', keys['end']) or '0'
  local seen = table.concat({there[1] or '0', there[2] or '', last_change(keys.changes), ended}, ' ')
  if there[4] and there[4] ~= args[1] and tonumber(there[3]) > now then return {'OTHER', seen} end
  if args[3] ~= '' and args[3] ~= seen then return {'SEEN', seen} end
  if args[2] == '0' then
    redis.call('HDEL', keys.head, 'stop', 'stopper')
  else
    redis.call('HSET', keys.head, 'stop', string.format('%.0f', now + tonumber(args[2]) * 1000000), 'stopper', args[1])
  end
  return {'OK', seen}
end

-- opic_5_move: end a crawl for good, whose shards the caller stopped: another one takes its place.
--   KEYS head meta   ARGV token target, as text
-- Returns 1; 0 if this shard is not stopped by the token any more, so that writes may have come.
local function move(keys, args)
  local there = redis.call('HMGET', keys.head, 'stop', 'stopper')
  if there[2] ~= args[1] or tonumber(there[1]) <= now_us() then return 0 end
  redis.call('HSET', keys.meta, 'moved', args[2])
  redis.call('HSET', keys.head, 'stop', string.format('%.0f', BALANCE))
  return 1
end

redis.register_function('opic_5_init', by_name(init))
redis.register_function{function_name='opic_5_stop', callback=by_name(stop), flags={'allow-oom'}}
redis.register_function{function_name='opic_5_move', callback=by_name(move), flags={'allow-oom'}}
redis.register_function('opic_5_resume', by_name(resume))
redis.register_function('opic_5_step', by_name(step))
redis.register_function('opic_5_blocks', blocks)
redis.register_function('opic_5_links', by_name(links))
redis.register_function{function_name='opic_5_trim_outbox', callback=by_name(trim_outbox), flags={'allow-oom'}}
redis.register_function{function_name='opic_5_trim', callback=by_name(trim), flags={'allow-oom'}}
