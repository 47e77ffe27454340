-- Leases and politeness: the server side of opic/frontier. This file and journal.lua are loaded as one library. Times
-- are those of the server, so that several endpoints agree: microseconds in `leases`, elsewhere seconds.
--
--   leases      sorted set: page -> end of its lease        waits  sorted set: page -> when it may be offered again
--   fails       hash: page -> consecutive failed fetches    hosts  sorted set: host -> when its next page may be leased
--   polite      hash: host -> "delay cap" or "delay cap revisit", set by an operator; '-' means the default setting
--   crawldelays hash: host -> delay in seconds from its robots.txt
--   flights     hash: host with a cap -> its leased pages, with the ends of their leases
--   flightends  sorted set: host in flights -> the last of those ends
--   freed       hash: n counts early releases of pages and hosts; a reader whose count is below `whole` must read all
--               leases, waits and hosts again
--   released    sorted set: released page -> n at its release; the last RELEASED_MAX pages

local SWEPT_MAX = 1000
local FLIGHTS_SWEPT_MAX = 100
local RELEASED_MAX = 10000
local BACK_OFF_SECONDS_MAX = 86400

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function retry_of(times, retry)
  return math.min(retry * 2 ^ math.min(times - 1, 30), BACK_OFF_SECONDS_MAX)
end

-- End expired leases, up to 1,000 per call; each counts as a failed fetch.
local function sweep(keys, now, retry)
  local leases, waits, fails, hosts, flights, ends = keys[1], keys[2], keys[3], keys[4], keys[8], keys[9]
  local text = string.format('%.0f', now)
  local over = redis.call('ZRANGE', leases, '-inf', text, 'BYSCORE', 'LIMIT', 0, SWEPT_MAX, 'WITHSCORES')
  for i = 1, #over, 2 do
    local times = redis.call('HINCRBY', fails, over[i], 1)
    if retry > 0 then
      redis.call('ZADD', waits, string.format('%.6f', over[i + 1] / 1000000 + retry_of(times, retry)), over[i])
    end
    redis.call('ZREM', leases, over[i])
  end
  redis.call('ZREMRANGEBYSCORE', hosts, '-inf', string.format('%.6f', now / 1000000))
  local landed = redis.call('ZRANGE', ends, '-inf', text, 'BYSCORE', 'LIMIT', 0, FLIGHTS_SWEPT_MAX)
  if #landed > 0 then
    redis.call('HDEL', flights, unpack(landed))
    redis.call('ZREM', ends, unpack(landed))
  end
  return #over
end

-- The pages of a host that are in flight: leased pages whose leases still run unchanged.
local function in_flight(keys, host, now)
  local packed, found = redis.call('HGET', keys[8], host), {}
  local pages = packed and cmsgpack.unpack(packed) or {}
  for i = 1, #pages, 2 do
    local score = tonumber(redis.call('ZSCORE', keys[1], pages[i]))
    if score == pages[i + 1] and score > now then found[#found + 1], found[#found + 2] = pages[i], pages[i + 1] end
  end
  return found
end

-- The delay in seconds of a host, and its limit on pages in flight; 0 means no limit.
local function manners_of(keys, host, delay, cap, some_polite, some_delays)
  local set_delay, set_cap
  if some_polite then
    set_delay, set_cap = string.match(redis.call('HGET', keys[6], host) or '', '^(%S+) (%S+)')
    set_delay, set_cap = tonumber(set_delay), tonumber(set_cap)
  end
  if not set_delay and some_delays then
    delay = math.max(delay, tonumber(redis.call('HGET', keys[7], host)) or 0)
  end
  return set_delay or delay, set_cap or cap
end

-- opic_4_lease: lease pages, in the given order, each to one crawler. The caller chose them from a replica; this
-- function only checks leases, waits and hosts.
--   KEYS leases waits fails hosts freed polite crawldelays flights flightends head pagemeta
--   ARGV retry-seconds delay-seconds cap sweep (1 or 0) blob
--   blob = {expected {lsn, digest} of the head or nil, expected {freed, leases or nil} or nil, wishes {n, seconds, ..},
--     ids, hosts}
-- If the state is not as expected, the caller chose by an old state: nothing is leased, and it must choose again.
-- A wish is one request for n pages, leased for `seconds`; it gets the next pages that are free.
-- Returns {now, {lsn, digest, freed, leases}, running leases, for each wish granted {place, end, delay in ms, ..},
--   refused {place, what, until, ..}, {place, metadata, ..} of the granted pages that have some}; what: 1 the page is
--   leased, 2 its host's delay has not passed, 3 its host has reached its limit of pages in flight, until the first of
--   their leases ends, 4 the page is backing off.
local function take_moved(there, frees, count, head, held)
  return (head and (head[1] ~= (there[1] or '') or head[2] ~= (there[2] or '')))
    or (held and (held[1] ~= frees or (held[2] and held[2] ~= count)))
end

-- Why a page can't be leased: nil if it can; else 1 to 4, and the time in microseconds when it can. The third result
-- is the host's pages in flight.
local function take_hindrance(keys, id, host, now, retry, host_delay, host_cap, plan)
  local lease_end = plan.pages[id] and now or redis.call('ZSCORE', keys[1], id)
  if lease_end then return 1, tonumber(lease_end) + retry * 1000000 end
  local wait = tonumber(redis.call('ZSCORE', keys[2], id))
  if wait and wait * 1000000 > now then return 4, wait * 1000000 end
  local free = plan.next_of[host] or (host_delay > 0 and tonumber(redis.call('ZSCORE', keys[4], host))) or 0
  if host_delay > 0 and free * 1000000 > now then return 2, free * 1000000 end
  local flying = host_cap > 0 and (plan.flying[host] or in_flight(keys, host, now))
  if flying and #flying / 2 >= host_cap then
    local first = flying[2]
    for at = 4, #flying, 2 do first = math.min(first, flying[at]) end
    return 3, first
  end
  return nil, nil, flying
end

-- Write the new leases {end, id, ..}, the next free time of hosts, and the pages in flight of hosts with a limit.
local function take_write(keys, out, plan)
  for i = 1, #out, 2 do out[i] = string.format('%.0f', out[i]) end
  for i = 1, #out, VALUES_MAX - 1 do
    redis.call('ZADD', keys[1], unpack(out, i, math.min(i + VALUES_MAX - 2, #out)))
  end
  for host, free in pairs(plan.next_of) do redis.call('ZADD', keys[4], string.format('%.6f', free), host) end
  for host, pages in pairs(plan.flying) do
    local last = 0
    for at = 2, #pages, 2 do last = math.max(last, pages[at]) end
    redis.call('HSET', keys[8], host, cmsgpack.pack(pages))
    redis.call('ZADD', keys[9], string.format('%.0f', last), host)
  end
end

-- The metadata of pages that were granted {place, end, delay, ..}: {place, metadata, ..}.
local function take_metas(key, granted, ids)
  local metas = {}
  if redis.call('EXISTS', key) == 0 then return metas end
  for _, pages in ipairs(granted) do
    for at = 1, #pages, 3 do
      local meta = redis.call('HGET', key, string.format('%.0f', ids[pages[at]]))
      if meta then metas[#metas + 1], metas[#metas + 2] = pages[at], meta end
    end
  end
  return metas
end

local function take(keys, args)
  local retry, delay, cap = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  local blob = cmsgpack.unpack(args[5])
  local head, held, wishes, ids, names = unpack(blob, 1, 5)
  if not (retry and delay and cap) then return redis.error_reply('OPICARGS expected numbers') end
  for i = 1, #ids do
    if not whole(ids[i], 0, BALANCE) or type(names[i]) ~= 'string' then return redis.error_reply('OPICARGS expected pages') end
  end

  local now = now_us()
  if args[4] == '1' then sweep(keys, now, retry) end
  local there = redis.call('HMGET', keys[10], 'lsn', 'digest')
  local frees, count = redis.call('HGET', keys[5], 'n') or '0', redis.call('ZCARD', keys[1])
  if take_moved(there, frees, count, head, held) then ids = {} end
  local running = redis.call('ZCOUNT', keys[1], '(' .. string.format('%.0f', now), '+inf')

  local granted, refused, out, plan = {}, {}, {}, {pages = {}, next_of = {}, flying = {}}
  local some_polite, some_delays = redis.call('EXISTS', keys[6]) == 1, redis.call('EXISTS', keys[7]) == 1
  local wish, left, until_us = 0, 0, nil
  for i = 1, #ids do
    while left == 0 and wishes[2 * wish + 1] do
      left, until_us = wishes[2 * wish + 1], math.floor(now + wishes[2 * wish + 2] * 1000000)
      wish = wish + 1
      granted[wish] = {}
    end
    if left == 0 then break end
    local id, host = string.format('%.0f', ids[i]), names[i]
    local host_delay, host_cap = manners_of(keys, host, delay, cap, some_polite, some_delays)
    local what, till, flying = take_hindrance(keys, id, host, now, retry, host_delay, host_cap, plan)
    if what then
      refused[#refused + 1], refused[#refused + 2], refused[#refused + 3] = i, what, math.ceil(till)
    else
      local page, at = granted[wish], #granted[wish]
      page[at + 1], page[at + 2], page[at + 3] = i, until_us, math.ceil(host_delay * 1000)
      left = left - 1
      out[#out + 1], out[#out + 2] = until_us, id
      plan.pages[id] = true
      if host_delay > 0 then plan.next_of[host] = now / 1000000 + host_delay end
      if flying then
        flying[#flying + 1], flying[#flying + 2] = id, until_us
        plan.flying[host] = flying
      end
    end
  end
  take_write(keys, out, plan)
  local stamp = {there[1] or '', there[2] or '', frees, redis.call('ZCARD', keys[1])}
  return {now, stamp, running + #out / 2, granted, refused, take_metas(keys[11], granted, ids)}
end

-- opic_4_held: read a range of a sorted set.  KEYS set   ARGV least ('-inf' or '(' score), first, count
-- Returns {members, separated by line feeds; scores, as raw doubles}: parsing single RESP values is ten times slower.
local function held_part(keys, args)
  -- By rank: LIMIT would skip over all earlier elements one by one.
  local from = redis.call('ZCARD', keys[1]) - redis.call('ZCOUNT', keys[1], args[1], '+inf') + tonumber(args[2])
  local found = redis.call('ZRANGE', keys[1], from, from + tonumber(args[3]) - 1, 'WITHSCORES')
  local members, scores = {}, {}
  for i = 1, #found, 2 do
    members[#members + 1] = found[i]
    scores[#scores + 1] = struct.pack('<d', tonumber(found[i + 1]))
  end
  return {table.concat(members, '\n'), table.concat(scores)}
end

-- Record released pages, for other endpoints that cache them as leased. All pages of a call are kept, or none.
local function note_released(freed, released, ids)
  local n = redis.call('HINCRBY', freed, 'n', 1)
  for i = 1, #ids do redis.call('ZADD', released, n, ids[i]) end
  local over = redis.call('ZCARD', released) - RELEASED_MAX
  if over > 0 then
    local last = redis.call('ZRANGE', released, over - 1, over - 1, 'WITHSCORES')[2]
    redis.call('ZREMRANGEBYSCORE', released, '-inf', last)
    redis.call('HSET', freed, 'whole', last)
  end
end

-- opic_4_release: release leases of pages that were not fetched.  KEYS leases freed released   ARGV id until-us ..
-- Only leases that still run unchanged are released. Returns the new count of `freed` and the released pages.
local function release(keys, args)
  local released = {}
  for i = 1, #args, 2 do
    local score = redis.call('ZSCORE', keys[1], args[i])
    if score and tonumber(score) == tonumber(args[i + 1]) then
      redis.call('ZREM', keys[1], args[i])
      released[#released + 1] = args[i]
    end
  end
  if #released > 0 then note_released(keys[2], keys[3], released) end
  return {tonumber(redis.call('HGET', keys[2], 'n') or 0), released}
end

-- opic_4_polite: replace all rules for hosts.  KEYS polite freed   ARGV host rule ..
local function polite(keys, args)
  if #args % 2 ~= 0 then return redis.error_reply('OPICARGS a rule for each host') end
  for i = 2, #args, 2 do
    if not string.match(args[i], '^%S+ %S+$') and not string.match(args[i], '^%S+ %S+ %S+$') then return redis.error_reply('OPICARGS bad rule') end
  end
  local before = redis.call('HGETALL', keys[1])
  for i = 1, #before, 2 do redis.call('HDEL', keys[1], before[i]) end
  for i = 1, #args, 2 do redis.call('HSET', keys[1], args[i], args[i + 1]) end
  redis.call('HSET', keys[2], 'whole', redis.call('HINCRBY', keys[2], 'n', 1))
  return #args / 2
end

-- opic_4_flights: count the pages of hosts that are in flight.  KEYS as of opic_4_lease   ARGV host ..
local function flights(keys, args)
  local counts, now = {}, now_us()
  for i = 1, #args do counts[i] = #in_flight(keys, args[i], now) / 2 end
  return counts
end

-- opic_4_now: return the server's time in microseconds, by which the leases of a shard run.  KEYS leases
-- The key selects the server of a cluster.
redis.register_function{function_name='opic_4_now', callback=now_us, flags={'no-writes'}}
redis.register_function{function_name='opic_4_held', callback=held_part, flags={'no-writes'}}
redis.register_function{function_name='opic_4_flights', callback=flights, flags={'no-writes'}}
redis.register_function('opic_4_lease', take)
redis.register_function('opic_4_release', release)
redis.register_function('opic_4_polite', polite)
