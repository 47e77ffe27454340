-- The store's half of opic/frontier: who has a page until when, and how hosts are spared. It is loaded behind opic.lua,
-- as one library. Times are this server's, so that several endpoints agree: microseconds in `leases`, else seconds.
--
--   leases      sorted set: page -> end of its lease        waits  sorted set: page -> when it may be offered again
--   fails       hash: page -> failed fetches in a row       hosts  sorted set: host -> when its next page may go out
--   polite      hash: host -> "delay cap", what an operator set for it; '-' is the setting's
--   crawldelays hash: host -> seconds that its robots.txt asks for
--   flights     hash: host with a cap -> its pages that went out, with the ends of their leases
--   flightends  sorted set: host in flights -> the last of those ends
--   freed       hash: n counts what made a page or a host free before its time

local SWEPT_MAX = 1000
local FLIGHTS_SWEPT_MAX = 100

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function retry_of(times, retry)
  return math.min(retry * 2 ^ math.min(times - 1, 30), 86400)
end

-- End the leases that ran out, up to 1,000 of them; each counts as a failed fetch.
local function sweep(keys, now, retry)
  local leases, waits, fails, hosts, freed, flights, ends =
    keys[1], keys[2], keys[3], keys[4], keys[5], keys[8], keys[9]
  local text = string.format('%.0f', now)
  local over = redis.call('ZRANGE', leases, '-inf', text, 'BYSCORE', 'LIMIT', 0, SWEPT_MAX, 'WITHSCORES')
  for i = 1, #over, 2 do
    local times = redis.call('HINCRBY', fails, over[i], 1)
    if retry > 0 then
      redis.call('ZADD', waits, string.format('%.6f', over[i + 1] / 1000000 + retry_of(times, retry)), over[i])
    end
    redis.call('ZREM', leases, over[i])
  end
  if #over > 0 then redis.call('HINCRBY', freed, 'n', 1) end
  redis.call('ZREMRANGEBYSCORE', hosts, '-inf', string.format('%.6f', now / 1000000))
  local landed = redis.call('ZRANGE', ends, '-inf', text, 'BYSCORE', 'LIMIT', 0, FLIGHTS_SWEPT_MAX)
  if #landed > 0 then
    redis.call('HDEL', flights, unpack(landed))
    redis.call('ZREM', ends, unpack(landed))
  end
  return #over
end

-- The pages of a host that are in flight: those that went out and whose leases still run as they were given.
local function in_flight(keys, host, now)
  local packed, found = redis.call('HGET', keys[8], host), {}
  local pages = packed and cmsgpack.unpack(packed) or {}
  for i = 1, #pages, 2 do
    local score = tonumber(redis.call('ZSCORE', keys[1], pages[i]))
    if score == pages[i + 1] and score > now then found[#found + 1], found[#found + 2] = pages[i], pages[i + 1] end
  end
  return found
end

-- opic_1_lease: hand pages out, in the order given, to one crawler each.
--   KEYS leases waits fails hosts freed polite crawldelays flights flightends books, blocks ..
--   ARGV retry-seconds delay-seconds cap sweep (1 or 0) blob
--   blob = {expected {era, version} or nil, expected {freed, leases} or nil, mode, discovery, credits by class,
--           wishes {n, seconds, least, ..}, ids, hosts, and for each page the places in KEYS, behind the ten, of its blocks
--           v, h, s, m and u; 0 for one that is not wanted}
-- Where something else was expected than is there, the caller chose by an old view: nothing is leased, he looks again.
-- A wish takes the next pages that are free and count at least `least` now; `mode` is 1 for never read, 2 for read ones.
-- Returns {now, {era, version, freed, leases}, leases that run, books if another version was expected,
--   granted {place, end, delay in ms, ..} of each wish, rows: v and h of those granted, states, records, URLs (or blocks of
--   URLs), refused {place, what, until, ..}}; what: 1 the page is held until then, 2 its host is, 3 it counts less now.
local BLOCKS_AT = 10
local OPEN, NOT_OFFERED, KNOWN, CLASS = 16, 96, 8, 7

local function number_at(key, at)
  local raw = redis.call('GETRANGE', key, at * 8, at * 8 + 7)
  if #raw < 8 then return 0, '\0\0\0\0\0\0\0\0' end
  return struct.unpack('>i8', raw), raw
end

-- The delay in seconds and the cap on pages in flight of a host; a cap of 0 is none.
local function manners_of(keys, host, delay, cap, some_polite, some_delays)
  local set_delay, set_cap
  if some_polite then
    set_delay, set_cap = string.match(redis.call('HGET', keys[6], host) or '', '^(%S+) (%S+)$')
    set_delay, set_cap = tonumber(set_delay), tonumber(set_cap)
  end
  if not set_delay and some_delays then
    delay = math.max(delay, tonumber(redis.call('HGET', keys[7], host)) or 0)
  end
  return set_delay or delay, set_cap or cap
end

local function lease(keys, args)
  local leases, waits, hosts, freed, books = keys[1], keys[2], keys[4], keys[5], keys[10]
  local retry, delay, cap = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  local blob = cmsgpack.unpack(args[5])
  local state_wanted, held_wanted, mode, discovery, credits, wishes = unpack(blob, 1, 6)
  local ids, names, v_at, h_at, s_at, m_at, u_at = unpack(blob, 7, 13)
  if not (retry and delay and cap) then return redis.error_reply('OPICARGS numbers wanted') end
  for i = 1, #ids do
    if not whole(ids[i], 0, BALANCE) or type(names[i]) ~= 'string' or not keys[BLOCKS_AT + v_at[i]] then
      return redis.error_reply('OPICARGS pages wanted')
    end
  end

  local now = now_us()
  if args[4] == '1' then sweep(keys, now, retry) end
  local there = redis.call('HMGET', books, 'era', 'version')
  local frees, count = redis.call('HGET', freed, 'n') or '0', redis.call('ZCARD', leases)
  local moved = state_wanted and (state_wanted[1] ~= (there[1] or '') or state_wanted[2] ~= there[2])
  if moved or (held_wanted and (held_wanted[1] ~= frees or held_wanted[2] ~= count)) then ids = {} end
  local running = redis.call('ZCOUNT', leases, '(' .. string.format('%.0f', now), '+inf')

  local seconds = now / 1000000
  local granted, refused, rows, states, records, urls = {}, {}, {}, {}, {}, {}
  local out, next_of, flying = {}, {}, {}  -- What is written at the end: (end, page) ..; host -> free; host -> pages.
  local some_polite, some_delays = redis.call('EXISTS', keys[6]) == 1, redis.call('EXISTS', keys[7]) == 1
  local wish, left, least, until_us = 0, 0, 0, nil
  local function refuse(i, what, till)
    refused[#refused + 1], refused[#refused + 2], refused[#refused + 3] = i, what, math.ceil(till)
  end
  for i = 1, #ids do
    while left == 0 and wishes[3 * wish + 1] do
      left, until_us, least = wishes[3 * wish + 1], math.floor(now + wishes[3 * wish + 2] * 1000000), wishes[3 * wish + 3]
      wish = wish + 1
      granted[wish] = {}
    end
    if left == 0 then break end
    local id, host = string.format('%.0f', ids[i]), names[i]
    local lease_end, wait = redis.call('ZSCORE', leases, id), tonumber(redis.call('ZSCORE', waits, id))
    local host_delay, host_cap = delay, cap
    if some_polite or some_delays then
      host_delay, host_cap = manners_of(keys, host, delay, cap, some_polite, some_delays)
    end
    local host_free = next_of[host] or tonumber(redis.call('ZSCORE', hosts, host)) or 0
    if lease_end then
      refuse(i, 1, tonumber(lease_end) + retry * 1000000)
    elseif wait and wait > seconds then
      refuse(i, 1, wait * 1000000)
    elseif host_delay > 0 and host_free > seconds then
      refuse(i, 2, host_free * 1000000)
    else
      local pages = host_cap > 0 and (flying[host] or in_flight(keys, host, now))
      local v, v_raw = number_at(keys[BLOCKS_AT + v_at[i]], ids[i] % 4094)
      local _, h_raw = number_at(keys[BLOCKS_AT + h_at[i]], ids[i] % 4094)
      local state = string.byte(redis.call('GETRANGE', keys[BLOCKS_AT + s_at[i]], ids[i] % 32752, ids[i] % 32752)) or 0
      local open, cash = bit.band(state, OPEN) > 0, v + credits[bit.band(state, CLASS) + 1]
      local counts = math.abs(cash)
      if not open and discovery ~= 1 then counts = math.max(cash * discovery, 1) end
      if bit.band(state, NOT_OFFERED + KNOWN) ~= KNOWN or (mode == 1 and open) or (mode == 2 and not open)
        or cash == 0 or (cash < 0 and not open) or counts < least then
        refuse(i, 3, 0)
      elseif pages and #pages / 2 >= host_cap then
        local first = pages[2]
        for at = 4, #pages, 2 do first = math.min(first, pages[at]) end
        refuse(i, 2, first)
      else
        local page, at = granted[wish], #granted[wish]
        page[at + 1], page[at + 2], page[at + 3] = i, until_us, math.ceil(host_delay * 1000)
        left = left - 1
        out[#out + 1], out[#out + 2] = until_us, id
        if host_delay > 0 then next_of[host] = seconds + host_delay end
        if pages then
          pages[#pages + 1], pages[#pages + 2] = id, until_us
          flying[host] = pages
        end
        rows[#rows + 1] = v_raw .. h_raw
        states[#states + 1] = string.char(state)
        records[#records + 1] =
          m_at[i] > 0 and redis.call('HGET', keys[BLOCKS_AT + m_at[i]], string.format('%.0f', ids[i] % 128)) or ''
        local url = ''
        if u_at[i] > 0 then
          local block = keys[BLOCKS_AT + u_at[i]]
          url = redis.pcall('GET', block)  -- One that fills still is a list.
          if type(url) == 'table' then url = redis.call('LRANGE', block, ids[i] % 256, ids[i] % 256)[1] end
        end
        urls[#urls + 1] = url or ''
      end
    end
  end

  for i = 1, #out, 2 do out[i] = string.format('%.0f', out[i]) end
  for i = 1, #out, VALUES_MAX do redis.call('ZADD', leases, unpack(out, i, math.min(i + VALUES_MAX - 1, #out))) end
  for host, free in pairs(next_of) do redis.call('ZADD', hosts, string.format('%.6f', free), host) end
  for host, pages in pairs(flying) do
    local last = 0
    for at = 2, #pages, 2 do last = math.max(last, pages[at]) end
    redis.call('HSET', keys[8], host, cmsgpack.pack(pages))
    redis.call('ZADD', keys[9], string.format('%.0f', last), host)
  end
  return {
    now, {there[1] or '', there[2] or '', redis.call('HGET', freed, 'n') or '0', redis.call('ZCARD', leases)},
    running + #out / 2, moved and redis.call('HGETALL', books) or {},
    granted, table.concat(rows), table.concat(states), records, urls, refused
  }
end

-- opic_1_held: read a stretch of a sorted set.  KEYS set   ARGV least ('-inf' or '(' score), first, count
-- Returns {members, by line feeds; scores, as raw doubles}: RESP takes ten times as long to read them one by one.
local function held_part(keys, args)
  local found = redis.call('ZRANGE', keys[1], args[1], '+inf', 'BYSCORE', 'LIMIT', args[2], args[3], 'WITHSCORES')
  local members, scores = {}, {}
  for i = 1, #found, 2 do
    members[#members + 1] = found[i]
    scores[#scores + 1] = struct.pack('<d', tonumber(found[i + 1]))
  end
  return {table.concat(members, '\n'), table.concat(scores)}
end

-- opic_1_release: take leases back unread.  KEYS leases freed   ARGV id until-us id until-us ..
-- Only a lease that still runs as it was given is taken back. Returns the pages of those that were.
local function release(keys, args)
  local released = {}
  for i = 1, #args, 2 do
    local score = redis.call('ZSCORE', keys[1], args[i])
    if score and tonumber(score) == tonumber(args[i + 1]) then
      redis.call('ZREM', keys[1], args[i])
      released[#released + 1] = args[i]
    end
  end
  if #released > 0 then redis.call('HINCRBY', keys[2], 'n', 1) end
  return released
end

-- opic_1_polite: let other rules for hosts hold in the place of those before.  KEYS polite freed   ARGV host rule ..
local function polite(keys, args)
  if #args % 2 ~= 0 then return redis.error_reply('OPICARGS a rule for each host') end
  for i = 2, #args, 2 do
    if not string.match(args[i], '^%S+ %S+$') then return redis.error_reply('OPICARGS bad rule') end
  end
  local before = redis.call('HGETALL', keys[1])
  for i = 1, #before, 2 do redis.call('HDEL', keys[1], before[i]) end
  for i = 1, #args, 2 do redis.call('HSET', keys[1], args[i], args[i + 1]) end
  redis.call('HINCRBY', keys[2], 'n', 1)
  return #args / 2
end

-- opic_1_flights: count the pages of hosts that are in flight.  KEYS as of opic_1_lease   ARGV host ..
local function flights(keys, args)
  local counts, now = {}, now_us()
  for i = 1, #args do counts[i] = #in_flight(keys, args[i], now) / 2 end
  return counts
end

-- opic_1_now: say what time it is for the leases of a shard.  KEYS leases
-- Its key leads to the right server of a cluster. Returns microseconds.
redis.register_function{function_name='opic_1_now', callback=now_us, flags={'no-writes'}}
redis.register_function{function_name='opic_1_held', callback=held_part, flags={'no-writes'}}
redis.register_function{function_name='opic_1_flights', callback=flights, flags={'no-writes'}}
redis.register_function('opic_1_lease', lease)
redis.register_function('opic_1_release', release)
redis.register_function('opic_1_polite', polite)
