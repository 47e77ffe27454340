-- opic: the server side of cash transfers (the client side is opic/replica/batch.py).
--
-- A shard is a journal with checkpoints, under one hash tag, opic:{crawl:shard}: --
--   head                  hash: lsn and digest of the journal's last record. An append names the head that it expects.
--                         Field `forgot`: the last record that forgot pages, while blocks or the journal may have URLs
--                         of these; see `trim`
--   journal               stream: entry <lsn>-0 holds one effect in its field r (opic/replica/effect.py)
--   b:<n>, b:names        hashes: blocks of the checkpoint (opic/replica/checkpoint.py)
--   books, offsets        hashes: the totals after the last record; source/partition -> next offset. Field `hold` of
--                         offsets: until this time (microseconds) the shard accepts no deliveries from other shards and
--                         its log is not trimmed, while a backup finishes
--   copied                the last record of the journal that a running backup has copied; expires if the backup dies
--   out:<to>, sent        streams: entries sent to another shard, 1-0, 1-1 ..; hash: shard -> number of entries so far
--   seen                  sorted set: calls with an Idempotency-Key that took effect -> time of their records
--   pagemeta              hash: page -> its metadata, packed (opic/model/page_notes.py); -1 - page -> its other name
--   urls                  hash: page -> its URL, if it was forgotten and is known again: its line in a block may be empty
--   since                 hash: number from 0 -> entries on when pages became known (opic/store/known_since.py)
--   linkseg               hash: segments of the links of pages that were read (opic/replica/stored_links.py)
--   log, end, dead        streams, and the log's end offset: accepted events and dead letters
--   calls, callends       hash, sorted set: Idempotency-Keys of the last day, with what each call has appended
--   metrics               hash: metrics of the workers, and what `step` counts: metadata kept, and what was dropped
--   leases, waits, fails, holders, hosts   see leases.lua
--
-- Rules that keep it exact:
--   A function runs atomically, but its writes are not rolled back when it fails. So all checks come before the first
--   write. Records are opaque here: no amount passes through a Lua number, which is a double.
--   Every key is passed in KEYS, so that a cluster refuses a call before it starts, not in its middle.
-- At load time there are no globals, not even `string`: only syntax and registrations are allowed at the top level.

local VALUES_MAX = 7000    -- unpack() takes fewer than 8,000.
local BALANCE = 9007199254740992  -- 2^53
local end_leases, end_waits, in_chunks  -- See leases.lua.

local function whole(n, least, most)
  return type(n) == 'number' and n == math.floor(n) and n >= least and n < most
end

-- Compare the head with the one that the caller expects: nil if equal, else {'HEAD', lsn, digest}.
local function moved(head, lsn, digest)
  local there = redis.call('HMGET', head, 'lsn', 'digest')
  if (there[1] or '0') == lsn and (there[2] or digest) == digest then return nil end
  return {'HEAD', there[1] or '0', there[2] or ''}
end

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The time (microseconds) until which a backup holds a shard; nil if none does.
local function held(offsets)
  local hold = tonumber(redis.call('HGET', offsets, 'hold') or 0) or 0
  return hold > now_us() and string.format('%.0f', hold) or nil
end

-- opic_5_init: create a shard, once.  KEYS meta books   ARGV meta-blob books-blob (flat field, value lists)
-- Returns 1 if it was created, 0 if it existed.
local function init(keys, args)
  local blobs = {}
  for i = 1, 2 do blobs[i] = cmsgpack.unpack(args[i]) end
  if redis.call('EXISTS', keys[1]) == 1 then return 0 end
  for i = 1, 2 do redis.call('HSET', keys[i], unpack(blobs[i])) end
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
--   KEYS head journal books offsets dead leases waits fails sent seen pagemeta metrics urls refusals, outboxes ..,
--     since if it gets entries, holders if there are senders, or pages to forget
--   ARGV expected-lsn expected-digest new-lsn new-digest record retry-seconds blob most-pages-in-waits letter-bytes-max
--     meta-bytes-max
--   blob = {source/partition, expected offset, next offset, ..;   totals: field, text, ..;
--           fetches: id, 1 if it failed, time (seconds), ..;
--           dead letters: reason, partition, offset, index in an array or '', value, size of the whole value, ..;
--           for each outbox: shard, number, previous digest, entry, ..;
--           calls: time of the record, name, ..;   time before which calls are forgotten;
--           metadata, list of its pages, ..; '' for none;
--           senders, for each fetch: when it was made or reported (microseconds), digest of its crawler's name or '';
--             false for none;
--           waits that were asked for: number of a failed fetch, seconds, ..;   pages whose back-offs end after that;
--           pages to forget, ..;   pages that were forgotten and are known again: id, URL, ..;   entries of `since`}
-- Returns {'OK'}, or a refusal: {'HEAD', lsn, digest}, {'OFFSET', partition, next}, {'FULL', shard}, {'PAUSED', until}:
-- a backup holds deliveries from other shards. A head equal to the caller's new one is success: the reply was lost.
local OUTBOX_MAX = 20000  -- Entries of a few kilobytes: enough for a shard that is unavailable for an hour.
local FIXED = 14
local SINCE_BYTES = 1000

-- Whether any partition is an outbox of another shard or the grants: only those have a colon in their names.
local function own(advances)
  for i = 1, #advances, 3 do
    if string.find(advances[i], ':', 1, true) then return true end
  end
  return false
end

local function pages_only(ids, least)
  for _, page in ipairs(ids) do
    if not whole(page, least or 0, BALANCE) then return false end
  end
  return true
end

local function check_outboxes(keys, outboxes)
  for i = 1, #outboxes, 4 do
    if type(outboxes[i]) ~= 'string' or type(outboxes[i + 3]) ~= 'string' then
      return redis.error_reply('OPICARGS bad outbox')
    end
    if redis.call('XLEN', keys[FIXED + (i + 3) / 4]) >= OUTBOX_MAX then return {'FULL', outboxes[i]} end
    if (redis.call('HGET', keys[9], outboxes[i]) or '0') ~= outboxes[i + 1] then
      return redis.error_reply('OPICARGS an outbox does not match the journal')
    end
  end
  return nil
end

local function check_step(keys, args, blob)
  local advances, totals, fetches, letters, outboxes, calls, forget, metas, senders = unpack(blob, 1, 9)
  local asked, revived, forgotten, again, since = unpack(blob, 10, 14)
  for i = 1, #advances, 3 do
    local next_offset = redis.call('HGET', keys[4], advances[i]) or '0'
    if next_offset ~= advances[i + 1] then return {'OFFSET', advances[i], next_offset} end
  end
  local hold = own(advances) and held(keys[4])
  if hold then return {'PAUSED', hold} end
  local more = ((senders or #forgotten > 0) and 1 or 0) + (since and #since > 0 and 1 or 0)
  if #keys ~= FIXED + #outboxes / 4 + more or senders and #senders ~= #fetches / 3 * 2 then
    return redis.error_reply('OPICARGS keys do not match blob')
  end
  local refusal = check_outboxes(keys, outboxes)
  if refusal then return refusal end
  for i = 1, #totals, 2 do
    if not string.find(totals[i + 1], '^%-?%d+$') then return redis.error_reply('OPICARGS bad total') end
  end
  for i = 1, #fetches, 3 do
    if not whole(fetches[i], 0, BALANCE) or type(fetches[i + 2]) ~= 'number' then
      return redis.error_reply('OPICARGS bad fetch')
    end
  end
  for i = 1, #asked, 2 do
    if not whole(asked[i], 1, #fetches / 3 + 1) or type(asked[i + 1]) ~= 'number' then
      return redis.error_reply('OPICARGS bad wait')
    end
  end
  if not pages_only(revived) or not pages_only(forgotten) then return redis.error_reply('OPICARGS bad page') end
  for i = 1, #calls, 2 do
    if type(calls[i]) ~= 'number' or type(calls[i + 1]) ~= 'string' then return redis.error_reply('OPICARGS bad call') end
  end
  for i = 1, #metas, 2 do
    if type(metas[i]) ~= 'string' or type(metas[i + 1]) ~= 'table' then return redis.error_reply('OPICARGS bad metadata') end
    if not pages_only(metas[i + 1], -BALANCE) then return redis.error_reply('OPICARGS bad metadata') end
  end
  for i = 1, #again, 2 do
    if not whole(again[i], 0, BALANCE) or type(again[i + 1]) ~= 'string' then
      return redis.error_reply('OPICARGS bad URL')
    end
  end
  local numbers = tonumber(args[6]) and tonumber(args[9]) and tonumber(args[10])
  if not numbers or #letters % 6 ~= 0 or type(forget) ~= 'number' or #args[5] == 0 then
    return redis.error_reply('OPICARGS bad record, retry, letters or time')
  end
  return nil
end

-- Delete what is kept of pages by their ids, apart from the journal's replicas. Their metadata goes with `metas`.
local function forget_pages(keys, pages)
  local ids = {}
  for i, page in ipairs(pages) do ids[i] = string.format('%.0f', page) end
  for _, name in ipairs({'leases', 'waits'}) do
    in_chunks(ids, function(_, ...) redis.call('ZREM', keys[name], ...) end)
  end
  for _, name in ipairs({'fails', 'holders', 'urls', 'refusals'}) do
    in_chunks(ids, function(_, ...) redis.call('HDEL', keys[name], ...) end)
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
  local head, journal, books, offsets, dead, sent, seen = keys[1], keys[2], keys[3], keys[4], keys[5], keys[9], keys[10]
  local other = moved(head, args[1], args[2])
  if other then return other[2] == args[3] and other[3] == args[4] and {'OK'} or other end
  local blob = cmsgpack.unpack(args[7])
  local refusal = check_step(keys, args, blob)
  if refusal then return refusal end
  local advances, totals, fetches, letters, outboxes, calls, forget, metas, senders = unpack(blob, 1, 9)
  local asked, revived, forgotten, again, since = unpack(blob, 10, 14)

  redis.call('XADD', journal, args[3] .. '-0', 'r', args[5])
  redis.call('HSET', head, 'lsn', args[3], 'digest', args[4])
  for i = 1, #advances, 3 do redis.call('HSET', offsets, advances[i], advances[i + 2]) end
  redis.call('HSET', books, unpack(totals))
  local lease_keys = {leases = keys[6], waits = keys[7], fails = keys[8], holders = senders and keys[#keys]}
  end_leases(lease_keys, fetches, senders, tonumber(args[6]), tonumber(args[8]), asked)
  end_waits(lease_keys, revived)
  keep_letters(dead, keys[12], letters, tonumber(args[9]))
  for i = 1, #outboxes, 4 do
    redis.call('HINCRBY', sent, outboxes[i], 1)
    redis.call('XADD', keys[FIXED + (i + 3) / 4], '1-' .. outboxes[i + 1], 'p', outboxes[i + 2], 'v', outboxes[i + 3])
  end
  keep_metas(keys[11], keys[12], metas, tonumber(args[10]))
  for i = 1, #calls, 2 do redis.call('ZADD', seen, string.format('%.0f', calls[i]), calls[i + 1]) end
  if #forgotten > 0 then
    local of_pages = {leases = keys[6], waits = keys[7], fails = keys[8], urls = keys[13], refusals = keys[14]}
    of_pages.holders = keys[#keys]
    forget_pages(of_pages, forgotten)
    redis.call('HSET', head, 'forgot', args[3])
  end
  for i = 1, #again, 2 do redis.call('HSET', keys[13], string.format('%.0f', again[i]), again[i + 1]) end
  if since and #since > 0 then note_since(keys[FIXED + #outboxes / 4 + 1], since) end
  if #calls > 0 then redis.call('ZREMRANGEBYSCORE', seen, '-inf', string.format('%.0f', forget)) end
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
  local other = moved(keys[1], args[1], args[2])
  if other then return other end
  local v = redis.call('HGET', keys[2], 'v') or '0'
  if v ~= args[3] then return {'V', v} end
  local deleted = tonumber(args[4])
  local first = whole(deleted, 0, VALUES_MAX) and 5 + deleted
  if not first or #args < first or (#args - first) % 2 ~= 1 then return redis.error_reply('OPICARGS bad segments') end
  if deleted > 0 then redis.call('HDEL', keys[2], unpack(args, 5, 4 + deleted)) end
  redis.call('HSET', keys[2], unpack(args, first))
  return {'OK'}
end

-- opic_5_trim: trim the journal's records below `least`, but never the last record, nor one that a backup still needs.
--   KEYS head journal copied   ARGV expected-lsn expected-digest least blank
-- All blocks are blank of the URLs of pages that records up to `blank` forgot; the journal has none of these URLs if it
-- begins with the record that forgot the last of them. Trimming frees memory, so it is allowed when the server is out
-- of memory. Returns {'OK', the first record that may be left} or {'HEAD', lsn, digest}.
local function trim(keys, args)
  local other = moved(keys[1], args[1], args[2])
  if other then return other end
  local least = math.min(tonumber(args[3]), tonumber(args[1]), tonumber(redis.call('GET', keys[3]) or args[1]) + 1)
  redis.call('XTRIM', keys[2], 'MINID', string.format('%.0f-0', least))
  local forgot = tonumber(redis.call('HGET', keys[1], 'forgot') or 0)
  if forgot > 0 and forgot <= math.min(tonumber(args[4]), least) then redis.call('HDEL', keys[1], 'forgot') end
  return {'OK', string.format('%.0f', least)}
end

-- opic_5_trim_outbox: trim entries of an outbox that have taken effect, unless a backup was restored since they did.
--   KEYS outbox meta   ARGV offset era
local function trim_outbox(keys, args)
  if closed(keys[2], args[2]) then return 0 end
  return redis.call('XTRIM', keys[1], 'MINID', '1-' .. args[1])
end

-- opic_5_resume: move a partition's resume point forward, unless it is below `least`.
--   KEYS resume meta; a crawl of one shard has its resume points in `offsets`
--   ARGV source/partition next-offset least era shard offset shard offset ..; a `least` of -1 also allows moving it back
-- The fields source/partition@shard record the partition's next offset in each shard. If a shard is later found below
-- its field, the shard's server lost writes.
-- Returns the previous resume point. If it is below `least`, a server lost writes, and the records in between were not
-- read again yet. 'ERA' if a backup is being restored, or was restored since `era` was read.
local function resume(keys, args)
  if closed(keys[2], args[4]) then return 'ERA' end
  local now = redis.call('HGET', keys[1], args[1]) or '0'
  local at, to, least = tonumber(now), tonumber(args[2]), tonumber(args[3])
  if least == -1 or (at >= least and to > at) then
    redis.call('HSET', keys[1], args[1], args[2])
    for i = 5, #args, 2 do redis.call('HSET', keys[1], args[1] .. '@' .. args[i], args[i + 1]) end
  end
  return now
end

redis.register_function('opic_5_init', init)
redis.register_function('opic_5_resume', resume)
redis.register_function('opic_5_step', step)
redis.register_function('opic_5_blocks', blocks)
redis.register_function('opic_5_links', links)
redis.register_function{function_name='opic_5_trim_outbox', callback=trim_outbox, flags={'allow-oom'}}
redis.register_function{function_name='opic_5_trim', callback=trim, flags={'allow-oom'}}
