#!lua name=opic_1
-- opic: the store's half of the way that cash takes (the other half is opic/store/batch.py).
--
-- A shard is a set of columns under one hash tag, opic:{crawl:shard}: --
--   v:<b>  h:<b>  f:<b>   strings of 4,094 big-endian int64: signed cash less credit, total history, in-flow
--   r:<b>                 string of 4,094 big-endian int64: reads of the pages of each m:<b>; may be short or missing
--   s:<b>                 string of 32,752 state bytes; 0 is an id that no step has made known
--   m:<b>                 hash of 128 ids: packed reads, departures and measures
--   u:<b>                 256 URLs in order of ids: a list while it fills, then one zstd string
--   p:<b>                 hash: fingerprint -> id, about 32 a bucket; buckets split one by one as pages come
--   ids, books, offsets   hashes: counters of ids; the totals of the columns; source/partition -> next offset
--   out:<to>, sent        streams: what was sent to another shard, 1-0, 1-1 ..; hash: shard -> how many so far
--   seen                  sorted set: records of calls with an Idempotency-Key that took effect -> their time
--   log, end, dead        streams and the log's end: accepted events, and those that can't be taken
--   calls, callends       hash, sorted set: Idempotency-Keys of the last day, with what each call has appended
--   metrics               hash: what workers measured
--   series                list: (time, rounds, clock) of past hours or quarters of a round, 3 big-endian int64 each
--   leases, waits, fails, hosts   who has a page until when, what has to wait, how often it failed, host -> next time
--
-- Rules that keep it exact:
--   A function runs alone, but nothing it wrote is taken back when it fails. So every check stands above the first
--   write, and increments are plain INCRBYs of amounts that were checked to be whole and under 2^53.
--   A Lua number is a double: exact for those amounts and for offsets, but never for a clock, a credit or a history.
--   These are moved by HINCRBY and BITFIELD with the decimal text that came in, or copied as raw bytes.
--   Every key is passed in KEYS, so that a cluster refuses a call before it starts, not in its middle.
-- At load time there are no globals, not even `string`: only syntax and registrations may stand here.

local VALUES_MAX = 7000    -- unpack() takes fewer than 8,000.
local BALANCE = 9007199254740992  -- 2^53

local PLACE = {}  -- '#0' .. '#4093', for BITFIELD: to print a number takes Lua far longer than to find one.
for at = 0, 4093 do PLACE[at] = '#' .. at end

local function whole(n, least, most)
  return type(n) == 'number' and n == math.floor(n) and n >= least and n < most
end

-- A backup holds a shard until a time, in the field `gate`: of `ids` against new ids, of `offsets` against steps.
local function held(until_us)
  local time = until_us and redis.call('TIME')
  return time and tonumber(until_us) > time[1] * 1000000 + time[2]
end

-- opic_1_init: make a shard, once.  KEYS meta books ids   ARGV meta-blob books-blob ids-blob (flat field, value lists)
-- Returns 1 if it was made now, 0 if it was there.
local function init(keys, args)
  local blobs = {}
  for i = 1, 3 do blobs[i] = cmsgpack.unpack(args[i]) end
  if redis.call('EXISTS', keys[1]) == 1 then return 0 end
  for i = 1, 3 do redis.call('HSET', keys[i], unpack(blobs[i])) end
  return 1
end

-- opic_1_append: put records at the end of the log.  KEYS log end calls callends
--   ARGV time_us kind key body terms done now_us keys-max value value ...
-- `key` is '' or the digest of an Idempotency-Key: then these are the values from number `done` on of a call with that
-- digest of its body, and how far it came is kept for a day: so whoever repeats the call goes on there. `terms` are
-- the caller's, given back with the key. Expired keys go a few at a time, so that nobody waits for all of them.
-- Returns {'OK', offset of the first}, or what refused it: {'AT', terms, done}: the call came that far, by those terms;
-- {'OTHER'}: the key came with another body; {'FULL', when the first key ends}.
local KEY_US = 86400000000
local KEYS_SWEPT_MAX = 100

local function append(keys, args)
  local time_us, kind, key, body, terms = args[1], args[2], args[3], args[4], args[5]
  local done, now_us, keys_max = tonumber(args[6]), tonumber(args[7]), tonumber(args[8])
  local first, count = tonumber(redis.call('GET', keys[2]) or 0), #args - 8
  if not (done and now_us and keys_max and whole(first, 0, BALANCE)) or count < (key == '' and 1 or 0) then
    return redis.error_reply('OPICARGS append wants values')
  end
  local ends = key ~= '' and tonumber(redis.call('ZSCORE', keys[4], key) or 0) or 0
  local call = ends > now_us and cmsgpack.unpack(redis.call('HGET', keys[3], key))
  if call and call[1] ~= body then return {'OTHER'} end
  if call and (call[2] ~= terms or call[3] ~= done) then return {'AT', call[2], call[3]} end
  local over = redis.call('ZRANGE', keys[4], '-inf', args[7], 'BYSCORE', 'LIMIT', 0, KEYS_SWEPT_MAX)
  if key ~= '' and not call and redis.call('ZCARD', keys[4]) - #over >= keys_max then
    return {'FULL', redis.call('ZRANGE', keys[4], 0, 0, 'WITHSCORES')[2] or '0'}
  end

  if #over > 0 then
    redis.call('HDEL', keys[3], unpack(over))
    redis.call('ZREM', keys[4], unpack(over))
  end
  if key ~= '' then
    redis.call('HSET', keys[3], key, cmsgpack.pack({body, terms, done + count}))
    if not call then redis.call('ZADD', keys[4], string.format('%.0f', now_us + KEY_US), key) end
  end
  for i = 1, count do
    redis.call('XADD', keys[1], string.format('1-%.0f', first + i - 1), 't', time_us, 'k', kind, 'v', args[i + 8])
  end
  if count > 0 then redis.call('SET', keys[2], string.format('%.0f', first + count)) end
  return {'OK', first}
end

-- opic_1_ids: say the ids of pages, and give the next ones to those never seen, in the order given.
--   KEYS ids, buckets .., column blocks .., URL lists ..
--   ARGV expected-next expected-buckets blob
--   blob = {fingerprints, bucket of each (1-based), urls, number of buckets, bytes of each column block, first URL list}
-- The caller foresees which blocks new ids will need; if someone else gave ids meanwhile it gets {'MOVED', next,
-- buckets} and asks again; {'PAUSED', until} while a backup holds the shard. An id alone makes no page known: the step does.
local function ids(keys, args)
  local blob = cmsgpack.unpack(args[3])
  local fingerprints, bucket_of, urls, buckets, sizes, first_list =
    blob[1], blob[2], blob[3], blob[4], blob[5], blob[6]
  local counters = redis.call('HMGET', keys[1], 'next', 'buckets', 'gate')
  local next_id, lists = tonumber(counters[1]), 1 + buckets + #sizes
  if held(counters[3]) then return {'PAUSED', counters[3]} end
  if counters[1] ~= args[1] or counters[2] ~= args[2] then return {'MOVED', counters[1], counters[2]} end
  for i = 1, #fingerprints do
    if not (type(fingerprints[i]) == 'string' and type(urls[i]) == 'string' and keys[1 + bucket_of[i]]) then
      return redis.error_reply('OPICARGS a fingerprint, a bucket or a URL is missing')
    end
  end
  if #fingerprints > 0 and not keys[lists + math.floor((next_id + #fingerprints - 1) / 256) - first_list + 1] then
    return redis.error_reply('OPICARGS too few URL lists')
  end

  -- HSETNX both asks and writes: most pages that are asked for are new.
  local found, id, list, run = {}, next_id, math.floor(next_id / 256), {}
  local function push()
    if #run > 0 then redis.call('RPUSH', keys[lists + list - first_list + 1], unpack(run)) end
    run = {}
  end
  for i = 1, #fingerprints do
    local bucket = keys[1 + bucket_of[i]]
    if redis.call('HSETNX', bucket, fingerprints[i], id) == 1 then
      if id == (list + 1) * 256 then
        push()
        list = list + 1
      end
      found[i], run[#run + 1], id = id, urls[i], id + 1
    else
      found[i] = tonumber(redis.call('HGET', bucket, fingerprints[i]))
    end
  end
  if id == next_id then return found end
  push()
  for i = 1, #sizes do
    local key = keys[1 + buckets + i]
    -- Made at full length at once: a string that grows is given twice the room.
    if redis.call('EXISTS', key) == 0 then redis.call('SET', key, string.rep('\0', sizes[i])) end
  end
  redis.call('HSET', keys[1], 'next', string.format('%.0f', id))
  return found
end

-- opic_1_split: divide one fingerprint bucket (linear hashing).  KEYS ids old new   ARGV expected-buckets modulus
-- An entry whose first four bytes, as a number modulo `modulus`, name the new bucket moves there.
local function split(keys, args)
  local buckets, modulus = tonumber(args[1]), tonumber(args[2])
  if redis.call('HGET', keys[1], 'buckets') ~= args[1] or held(redis.call('HGET', keys[1], 'gate')) then return 0 end
  local entries, moved, gone = redis.call('HGETALL', keys[2]), {}, {}
  for i = 1, #entries, 2 do
    local a, b, c, d = string.byte(entries[i], 1, 4)
    if (a + 256 * (b + 256 * (c + 256 * d))) % modulus == buckets then
      moved[#moved + 1], moved[#moved + 2] = entries[i], entries[i + 1]
      gone[#gone + 1] = entries[i]
    end
  end
  for i = 1, #moved, VALUES_MAX do redis.call('HSET', keys[3], unpack(moved, i, math.min(i + VALUES_MAX - 1, #moved))) end
  for i = 1, #gone, VALUES_MAX do redis.call('HDEL', keys[2], unpack(gone, i, math.min(i + VALUES_MAX - 1, #gone))) end
  redis.call('HSET', keys[1], 'buckets', string.format('%.0f', buckets + 1))
  return 1
end

-- opic_1_seal: put one compressed string in the place of a full URL list.  KEYS ids list   ARGV block string
local function seal(keys, args)
  local block = tonumber(args[1])
  if redis.call('HGET', keys[1], 'sealed') ~= args[1] or held(redis.call('HGET', keys[1], 'gate')) then return 0 end
  if redis.call('LLEN', keys[2]) ~= 256 then return 0 end
  redis.call('SET', keys[2], args[2])
  redis.call('HSET', keys[1], 'sealed', string.format('%.0f', block + 1))
  return 1
end

-- opic_1_read: gather rows of columns, and the totals of the same instant.
--   KEYS books, int64 blocks .., byte blocks .., measure buckets ..
--   ARGV blob = {offsets for each int64 block, offsets for each byte block, fields for each bucket}
-- Returns {books (flat), int64s as raw bytes, bytes as raw bytes, packed records in order ('' for none)}.
local function read(keys, args)
  local blob = cmsgpack.unpack(args[1])
  local key, out = 1, {}
  for kind = 1, 2 do
    local width, parts = kind == 1 and 8 or 1, {}
    for _, offsets in ipairs(blob[kind]) do
      key = key + 1
      for _, at in ipairs(offsets) do
        parts[#parts + 1] = redis.call('GETRANGE', keys[key], at * width, at * width + width - 1)
      end
    end
    out[kind] = table.concat(parts)
  end
  local records = {}
  for _, wanted in ipairs(blob[3]) do
    key = key + 1
    for _, record in ipairs(redis.call('HMGET', keys[key], unpack(wanted))) do records[#records + 1] = record or '' end
  end
  return {redis.call('HGETALL', keys[1]), out[1], out[2], records}
end

-- opic_1_step: let a batch of records take effect, once, whole.
--   KEYS books offsets dead leases waits fails series sent seen,
--        int64 blocks .., state blocks .., measure buckets .., outboxes ..
--   ARGV expected-version retry-seconds blob
--   blob = {source/partition, expected offset, next offset, ..;
--           totals: field, difference (text), ..;
--           for each int64 block: offset, amount, ..;   for each state block: offset, bytes from there on, ..;
--           for each measure bucket: field, record, ..;   for each outbox: shard, entry, ..;
--           fetches: id, 1 if it failed, time (seconds), ..;   dead letters: reason, partition, offset, value, ..;
--           new entries of the series;   calls' records: time, name, ..;   time before which these are forgotten}
-- Returns {'OK'}, or what refused it: {'OFFSET', partition, next} {'VERSION', v} {'FULL', shard}, {'PAUSED', until}
-- while a backup holds the shard; in the field `pause`, it holds all but what shards send to each other. Two fences, since two
-- things may have moved: the same records may have been applied already (by whom does not matter), and another reader
-- may have moved cash. FULL: too many entries wait for another shard, which has to take them first.
local ENTRIES_MAX = 8760  -- As opic/series.py has it.
local OUTBOX_MAX = 20000  -- Entries; at some kilobytes each, a shard that is away for an hour.
local FIXED = 9

local function step(keys, args)
  local books, offsets, dead, leases, waits, fails, sent = keys[1], keys[2], keys[3], keys[4], keys[5], keys[6], keys[8]
  local blob = cmsgpack.unpack(args[3])
  local advances, totals, amounts, states, measures, outboxes, fetches, letters, entries, calls, forget = unpack(blob)
  local retry = tonumber(args[2])
  local gates = redis.call('HMGET', offsets, 'gate', 'pause')
  if held(gates[1]) then return {'PAUSED', gates[1]} end
  local paused = held(gates[2])
  for i = 1, #advances, 3 do
    -- What we wrote ourselves has a colon in its partition's name, and no topic has.
    if paused and not string.find(advances[i], ':', 1, true) then return {'PAUSED', gates[2]} end
    local next_offset = redis.call('HGET', offsets, advances[i]) or '0'
    if next_offset ~= advances[i + 1] then return {'OFFSET', advances[i], next_offset} end
  end
  local version = redis.call('HGET', books, 'version')
  if version ~= args[1] then return {'VERSION', version} end
  if #keys ~= FIXED + #amounts + #states + #measures + #outboxes / 2 then
    return redis.error_reply('OPICARGS keys do not match blob')
  end
  local first_outbox = #keys - #outboxes / 2
  for i = 1, #outboxes, 2 do
    if type(outboxes[i]) ~= 'string' or type(outboxes[i + 1]) ~= 'string' then
      return redis.error_reply('OPICARGS bad outbox')
    end
    if redis.call('XLEN', keys[first_outbox + (i + 1) / 2]) >= OUTBOX_MAX then return {'FULL', outboxes[i]} end
  end
  -- Each increment is checked and written out in one pass: this loop is most of what a step costs.
  local adds, n_adds = {}, 0
  for b, block in ipairs(amounts) do
    local key, ops, n = keys[FIXED + b], {}, 0
    for i = 1, #block, 2 do
      local place, amount = PLACE[block[i]], block[i + 1]
      if not (place and amount > -BALANCE and amount < BALANCE and amount % 1 == 0) then
        return redis.error_reply('OPICARGS bad amount')
      end
      ops[n + 1], ops[n + 2], ops[n + 3], ops[n + 4] = 'INCRBY', 'i64', place, amount
      n = n + 4
      if n >= VALUES_MAX then
        n_adds = n_adds + 1
        adds[n_adds], ops, n = {key, ops}, {}, 0
      end
    end
    n_adds = n_adds + 1
    adds[n_adds] = {key, ops}
  end
  for _, block in ipairs(states) do
    for i = 1, #block, 2 do
      if not (whole(block[i], 0, 32752) and type(block[i + 1]) == 'string' and block[i] + #block[i + 1] <= 32752) then
        return redis.error_reply('OPICARGS bad state')
      end
    end
  end
  for _, bucket in ipairs(measures) do
    for i = 1, #bucket do
      if type(bucket[i]) ~= 'string' then return redis.error_reply('OPICARGS bad measure') end
    end
  end
  for i = 1, #totals, 2 do
    if not string.find(totals[i + 1], '^%-?%d+$') or #totals[i + 1] > 19 then
      return redis.error_reply('OPICARGS bad total')
    end
    if math.abs((tonumber(redis.call('HGET', books, totals[i])) or 0) + tonumber(totals[i + 1])) > 2 ^ 62 then
      return redis.error_reply('OPICFULL the ' .. totals[i] .. ' reached its limit of 2^62')
    end
  end
  for i = 1, #fetches, 3 do
    if not whole(fetches[i], 0, BALANCE) or type(fetches[i + 2]) ~= 'number' then
      return redis.error_reply('OPICARGS bad fetch')
    end
  end
  for i = 1, #entries do
    if type(entries[i]) ~= 'string' or #entries[i] ~= 24 then return redis.error_reply('OPICARGS bad entry') end
  end
  for i = 1, #calls, 2 do
    if type(calls[i]) ~= 'number' or type(calls[i + 1]) ~= 'string' then return redis.error_reply('OPICARGS bad call') end
  end
  if not retry or #letters % 4 ~= 0 or #entries > VALUES_MAX or type(forget) ~= 'number' then
    return redis.error_reply('OPICARGS bad retry, letters, entries or time')
  end

  for i = 1, #advances, 3 do redis.call('HSET', offsets, advances[i], advances[i + 2]) end
  for i = 1, #totals, 2 do redis.call('HINCRBY', books, totals[i], totals[i + 1]) end
  redis.call('HINCRBY', books, 'version', 1)
  for i = 1, n_adds do redis.call('BITFIELD', adds[i][1], unpack(adds[i][2])) end
  local key = FIXED + #amounts
  for _, block in ipairs(states) do
    key = key + 1
    for i = 1, #block, 2 do redis.call('SETRANGE', keys[key], block[i], block[i + 1]) end
  end
  for _, bucket in ipairs(measures) do
    key = key + 1
    redis.call('HSET', keys[key], unpack(bucket))
  end
  -- A fetch ends the page's lease, whoever had it; a failure makes it wait, twice as long each time, up to a day.
  local leased = redis.call('EXISTS', leases) == 1
  local waiting = redis.call('EXISTS', waits, fails) > 0
  for i = 1, #fetches, 3 do
    local id = string.format('%.0f', fetches[i])
    if leased then redis.call('ZREM', leases, id) end
    if fetches[i + 1] == 1 then
      waiting = true
      local times = redis.call('HINCRBY', fails, id, 1)
      if retry > 0 then
        redis.call('ZADD', waits, fetches[i + 2] + math.min(retry * 2 ^ math.min(times - 1, 30), 86400), id)
      end
    elseif waiting then
      redis.call('ZREM', waits, id)
      redis.call('HDEL', fails, id)
    end
  end
  for i = 1, #letters, 4 do
    redis.call('XADD', dead, 'MAXLEN', '~', 100000, '*', 'opic-error', letters[i], 'opic-topic', 'log',
      'opic-partition', letters[i + 1], 'opic-offset', letters[i + 2], 'value', letters[i + 3])
  end
  for i = 1, #outboxes, 2 do
    local number = redis.call('HINCRBY', sent, outboxes[i], 1) - 1
    redis.call('XADD', keys[first_outbox + (i + 1) / 2], string.format('1-%.0f', number), 'v', outboxes[i + 1])
  end
  for i = 1, #calls, 2 do redis.call('ZADD', keys[9], string.format('%.0f', calls[i]), calls[i + 1]) end
  if #calls > 0 then redis.call('ZREMRANGEBYSCORE', keys[9], '-inf', string.format('%.0f', forget)) end
  if #entries > 0 then
    redis.call('RPUSH', keys[7], unpack(entries))
    redis.call('LTRIM', keys[7], -ENTRIES_MAX, -1)
  end
  return {'OK'}
end

-- opic_1_resume: move a partition's resume point on, unless it is before `least`.  KEYS resume
--   ARGV source/partition next-offset least; a `least` of -1 moves it back as well
-- Returns what it was: before `least` a server lost its tail, and what lies between was not read again yet.
local function resume(keys, args)
  local now = redis.call('HGET', keys[1], args[1]) or '0'
  local at, to, least = tonumber(now), tonumber(args[2]), tonumber(args[3])
  if least == -1 or (at >= least and to > at) then redis.call('HSET', keys[1], args[1], args[2]) end
  return now
end

redis.register_function('opic_1_init', init)
redis.register_function('opic_1_resume', resume)
redis.register_function('opic_1_append', append)
redis.register_function('opic_1_ids', ids)
redis.register_function('opic_1_split', split)
redis.register_function('opic_1_seal', seal)
redis.register_function{function_name='opic_1_read', callback=read, flags={'no-writes'}}
redis.register_function('opic_1_step', step)
