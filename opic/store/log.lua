-- opic: the log of accepted events in the store (the client side is opic/ingest/event_log.py).
--
-- Its keys are those of the crawl's first shard.

-- opic_5_close: let the log of a crawl, if there is one, take no record for a while (microseconds); 0 ends that.
--   KEYS meta end   ARGV duration token end
-- With a token, until the restore that has it ends, if the log has not gone beyond `end`.
-- Returns {the end of the log, 0 if a restore has begun; time}.
local function close(keys, args)
  local now, open = now_us(), redis.call('HEXISTS', keys.meta, 'restoring') == 0
  local there = open and redis.call('GET', keys['end']) or '0'
  if args[1] == '0' or redis.call('EXISTS', keys.meta) == 0 then
    redis.call('HDEL', keys.meta, 'closed')
  elseif args[2] == '' then
    redis.call('HSET', keys.meta, 'closed', string.format('%.0f', now + tonumber(args[1])))
  elseif tonumber(there) <= tonumber(args[3]) then
    redis.call('HSET', keys.meta, 'restoring', args[2])
  end
  return {there, string.format('%.0f', now)}
end

-- opic_5_append: append records to the log.  KEYS log end calls callends meta head
--   ARGV time_us kind key body terms done keys-max era value value ...
-- `key` is '' or the digest of an Idempotency-Key. With a key, the values are those from number `done` on of a call
-- whose body has the digest `body`. The progress of the call is kept for a day, so that a repeat continues there.
-- `terms` are stored for the caller and returned with the key. A call deletes only a limited number of expired keys.
-- A record of n events has n offsets and is named by the last; its field `n` says how many it has.
-- Returns {'OK', the log's end, era}, or a refusal: {'AT', terms, done, era}: the call has progressed to `done`,
-- with these terms; {'OTHER'}: the key was used with another body; {'FULL', microseconds until the first key expires};
-- {'GONE'}: the store has lost the crawl; see `closed`.
local KEY_US = 86400000000
local KEYS_SWEPT_MAX = 100

-- The number of events that a value has: those of an array in MessagePack.
local function events_in(kind, value)
  local first, second, third = string.byte(value, 1, 3)
  if kind ~= 'event' or not first then return 1 end
  if first >= 0x90 and first <= 0x9f then return math.max(first - 0x90, 1) end
  if first == 0xdc and third then return math.max(second * 256 + third, 1) end
  return 1
end

local function append(keys, args)
  local time_us, kind, key, body, terms = args[1], args[2], args[3], args[4], args[5]
  local done, keys_max, now = tonumber(args[6]), tonumber(args[7]), now_us()
  local first, count = tonumber(redis.call('GET', keys['end']) or 0), #args - 8
  if not (done and keys_max and whole(first, 0, BALANCE)) or count < (key == '' and 1 or 0) then
    return redis.error_reply('OPICARGS append needs values')
  end
  local refusal, era = closed(keys.meta, args[8])
  refusal = refusal or stopped(keys)
  if refusal then return refusal end
  if redis.call('HEXISTS', keys.meta, 'format') == 0 then return {'GONE'} end
  local ends = key ~= '' and tonumber(redis.call('ZSCORE', keys.callends, key) or 0) or 0
  local call = ends > now and cmsgpack.unpack(redis.call('HGET', keys.calls, key))
  if call and call[1] ~= body then return {'OTHER'} end
  if call and (call[2] ~= terms or call[3] ~= done) then return {'AT', call[2], call[3], era} end
  local over = redis.call('ZRANGE', keys.callends, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, KEYS_SWEPT_MAX)
  if key ~= '' and not call and redis.call('ZCARD', keys.callends) - #over >= keys_max then
    return {'FULL', string.format('%.0f', (redis.call('ZRANGE', keys.callends, 0, 0, 'WITHSCORES')[2] or now) - now)}
  end

  if #over > 0 then
    redis.call('HDEL', keys.calls, unpack(over))
    redis.call('ZREM', keys.callends, unpack(over))
  end
  if key ~= '' then
    -- A crawl that was moved has calls of which it is kept whether their values are packed: see MovedEntries.
    redis.call('HSET', keys.calls, key, cmsgpack.pack({body, terms, done + count, call and call[4] or nil}))
    if not call then redis.call('ZADD', keys.callends, string.format('%.0f', now + KEY_US), key) end
  end
  local stop = first
  for i = 1, count do
    local value = args[i + 8]
    local events = events_in(kind, value)
    stop = stop + events
    redis.call('XADD', keys.log, string.format('1-%.0f', stop - 1), 't', time_us, 'k', kind, 'v', value, 'n', events)
  end
  if count > 0 then redis.call('SET', keys['end'], string.format('%.0f', stop)) end
  return {'OK', stop, era}
end

-- opic_5_begun: what `append` keeps of a call with an Idempotency-Key, and the era; without a call, or after its day, {}.
--   KEYS calls callends meta   ARGV key
local function begun(keys, args)
  if tonumber(redis.call('ZSCORE', keys.callends, args[1]) or 0) <= now_us() then return {} end
  return {redis.call('HGET', keys.calls, args[1]), redis.call('HGET', keys.meta, 'era') or ''}
end

-- opic_5_trim_log: trim accepted events below an offset, approximately, because whole stream nodes are cheap to drop.
-- Trims nothing while a backup holds the shard, or in another era.  KEYS log offsets meta   ARGV offset era
local function trim_log(keys, args)
  if held(keys.offsets) or closed(keys.meta, args[2]) then return 0 end
  return redis.call('XTRIM', keys.log, 'MINID', '~', '1-' .. args[1])
end

redis.register_function('opic_5_close', by_name(close))
redis.register_function('opic_5_append', by_name(append))
redis.register_function{function_name='opic_5_begun', callback=by_name(begun), flags={'no-writes'}}
redis.register_function{function_name='opic_5_trim_log', callback=by_name(trim_log), flags={'allow-oom'}}
