-- Leases and politeness: the server side of opic/frontier. This file and journal.lua are loaded as one library. Times
-- are those of the server, so that several endpoints agree: microseconds in `leases`, elsewhere seconds.
--
--   leases      sorted set: page -> end of its lease        waits  sorted set: page -> when it may be offered again
--   fails       hash: page -> consecutive failed fetches    hosts  sorted set: host -> when its next page may be leased
--   holders     hash: leased page -> start of its lease, digest of its crawler's name, those of crawlers whose earlier
--               leases of the page no event of theirs has ended ..; without a lease 0, NOBODY, and the latter
--   polite      hash: host -> "delay cap" or "delay cap revisit", set by an operator; '-' means the default setting
--   crawldelays hash: host -> delay in seconds from its robots.txt
--   blocks      hash: host -> when its next page may be leased, as a crawler or an operator said
--   limits      hash: host -> how many of its pages may be read; endpoints count them
--   flights     hash: host with a cap -> its leased pages, with the ends of their leases
--   flightends  sorted set: host in flights -> the last of those ends
--   freed       hash: n counts early releases of pages and hosts; a reader whose count is below `whole` must read all
--               leases, waits, hosts and limits again, below `limits` the limits
--   renewed     sorted set: page-end of a lease as it was granted -> its present end; its token stays the same
--   released    sorted set: released page -> n at its release; the last RELEASED_MAX pages

local SWEPT_MAX = 1000
local FLIGHTS_SWEPT_MAX = 1000  -- More than a call adds, so that they do not pile up.
local RELEASED_MAX = 10000
local BACK_OFF_SECONDS_MAX = 86400
local NOBODY = '\0\0\0\0\0\0'      -- In place of the digest of a name, which has 6 bytes.
local EARLIER_MAX = 4               -- Crawlers with earlier leases that are remembered for a page.
local EARLIER_SECONDS = 3600        -- They are remembered for so long after the page was fetched.
local FORGET_SECONDS = 86400        -- A page is forgotten in `waits` and `fails` so long after its back-off is over.
local FORGOTTEN_MAX = 1000          -- Pages forgotten in one call, and one more for each that fails.
local WAITS_MAX = 250000            -- Pages in `waits`, for a caller that names no limit.

local function retry_of(times, retry)
  return math.min(retry * 2 ^ math.min(times - 1, 30), BACK_OFF_SECONDS_MAX)
end

in_chunks = function(values, call)
  for first = 1, #values, VALUES_MAX do call(first, unpack(values, first, math.min(first + VALUES_MAX - 1, #values))) end
end

-- Count a failed fetch. The page waits, from `from` (seconds), twice as long each time; or for `asked` seconds.
local function back_off(keys, id, from, retry, asked)
  local times = redis.call('HINCRBY', keys.fails, id, 1)
  redis.call('ZADD', keys.waits, string.format('%.6f', from + (asked or retry_of(times, retry))), id)
end

-- Forget pages whose back-off has been over for a day. If there are more than `waits_max`, also forget those whose
-- back-off ends first.
local function forget_waits(keys, now, waits_max, most)
  local past = string.format('%.6f', now / 1000000 - FORGET_SECONDS)
  local ids = redis.call('ZRANGE', keys.waits, '-inf', past, 'BYSCORE', 'LIMIT', 0, most)
  local over = math.min(redis.call('ZCARD', keys.waits) - (waits_max or WAITS_MAX), most)
  if #ids < over then ids = redis.call('ZRANGE', keys.waits, 0, over - 1) end
  if #ids == 0 then return end
  redis.call('ZREM', keys.waits, unpack(ids))
  redis.call('HDEL', keys.fails, unpack(ids))
  if not keys.holders or redis.call('EXISTS', keys.holders) == 0 then return end
  local leased = redis.call('ZMSCORE', keys.leases, unpack(ids))
  for i, id in ipairs(ids) do
    if not leased[i] then redis.call('HDEL', keys.holders, id) end
  end
end

local function crawler_of(digest)
  return digest and #digest == #NOBODY and digest or NOBODY
end

-- An entry of `holders` as {start, crawler, earlier crawlers ..}, and back.
local function entry_of(packed)
  local entry = {(struct.unpack('<d', packed))}
  for at = 9, #packed, #NOBODY do entry[#entry + 1] = string.sub(packed, at, at + #NOBODY - 1) end
  return entry
end

local function packed_entry(entry)
  return struct.pack('<d', entry[1]) .. table.concat(entry, '', 2)
end

-- Who leases pages, or did: page -> packed entry.
local function read_holders(holders, ids)
  local found = {}
  if not holders or redis.call('EXISTS', holders) == 0 then return found end
  in_chunks(ids, function(first, ...)
    for i, entry in ipairs(redis.call('HMGET', holders, ...)) do
      if entry then found[ids[first + i - 1]] = entry end
    end
  end)
  return found
end

-- Remember that a crawler's lease of a page ended without an event of that crawler.
local function add_earlier(entry, crawler)
  for i = 3, #entry do
    if entry[i] == crawler then return end
  end
  if #entry - 2 == EARLIER_MAX then table.remove(entry, 3) end
  entry[#entry + 1] = crawler
end

-- Write what is left of entries when the leases of their pages have ended: the earlier crawlers. `waits` must have each
-- page of which anything is left, so that it is forgotten some day.
local function end_holders(keys, entries, now)
  local gone = {}
  for id, entry in pairs(entries) do
    if type(entry) == 'string' and #entry > 8 + #NOBODY then entry = entry_of(entry) end
    if type(entry) == 'string' or #entry == 2 then
      gone[#gone + 1] = id
    else
      entry[1], entry[2] = 0, NOBODY
      redis.call('HSET', keys.holders, id, packed_entry(entry))
      redis.call('ZADD', keys.waits, 'GT', string.format('%.6f', now / 1000000 - FORGET_SECONDS + EARLIER_SECONDS), id)
    end
  end
  in_chunks(gone, function(_, ...) redis.call('HDEL', keys.holders, ...) end)
end

-- Whether nothing is to be remembered of a lease after an event of this crawler, as mostly: it saves making a table.
local function is_plain(entry, crawler)
  if type(entry) ~= 'string' or #entry ~= 8 + #NOBODY then return false end
  local holder = string.sub(entry, 9)
  return crawler == NOBODY or holder == NOBODY or holder == crawler
end

-- Whether an event belongs to an earlier lease of a page, and not to the present one. Without an earlier lease that
-- lacks its event it never does. Else its crawler tells; if that is not conclusive, its time does.
local function is_late(entry, at_us, crawler)
  if #entry == 2 or entry[1] == 0 then return false end
  local earlier = {}
  for i = 3, #entry do earlier[entry[i]] = true end
  if crawler ~= NOBODY and crawler == entry[2] then
    if not earlier[crawler] then return false end
  elseif crawler ~= NOBODY then
    if earlier[crawler] then return true end
    if entry[2] ~= NOBODY and not earlier[NOBODY] then return false end
  end
  return at_us < entry[1]
end

-- End the back-offs of pages. They stay in `waits` for a while, as `end_holders` says.
end_waits = function(keys, ids)
  local past = string.format('%.6f', now_us() / 1000000 - FORGET_SECONDS + EARLIER_SECONDS)
  for _, page in ipairs(ids) do
    local id = string.format('%.0f', page)
    redis.call('ZADD', keys.waits, 'XX', past, id)
    redis.call('HDEL', keys.fails, id)
  end
end

-- A fetch ends the page's lease, whoever reports it, unless it belongs to an earlier lease of the page. A failure starts
-- a back-off, which doubles each time, up to a day, unless its event asks for another wait: {number of the fetch,
-- seconds, ..}.
end_leases = function(keys, fetches, senders, retry, waits_max, asked)
  local ids, ended, well, failures, now, waits = {}, {}, {}, 0, now_us(), {}
  for i = 1, #asked, 2 do waits[asked[i]] = asked[i + 1] end
  for i = 1, #fetches, 3 do ids[#ids + 1] = string.format('%.0f', fetches[i]) end
  if #ids == 0 then return end
  local held, waiting = read_holders(keys.holders, ids), redis.call('EXISTS', keys.waits, keys.fails) > 0
  local function clear()
    if waiting then
      in_chunks(well, function(_, ...) redis.call('ZREM', keys.waits, ...) redis.call('HDEL', keys.fails, ...) end)
    end
    well = {}
  end
  for i, id in ipairs(ids) do
    local entry, failed, late = held[id], fetches[3 * i - 1] == 1, false
    local crawler = entry and crawler_of(senders[2 * i])
    if entry and not is_plain(entry, crawler) then
      if type(entry) == 'string' then entry = entry_of(entry) end
      late, held[id] = is_late(entry, senders[2 * i - 1], crawler), entry
      if not late then
        if entry[2] ~= NOBODY and crawler ~= NOBODY and entry[2] ~= crawler then add_earlier(entry, entry[2]) end
        entry[1], entry[2] = 0, NOBODY
      end
    end
    if not late then ended[#ended + 1] = id end
    if not failed then
      well[#well + 1] = id
    elseif not late then  -- The failure of a late one was counted when its lease expired.
      clear()
      back_off(keys, id, fetches[3 * i], retry, waits[i])
      failures, waiting = failures + 1, true
    end
  end
  clear()
  if redis.call('EXISTS', keys.leases) == 1 then
    in_chunks(ended, function(_, ...) redis.call('ZREM', keys.leases, ...) end)
  end
  for id, entry in pairs(held) do
    if type(entry) == 'table' and entry[1] ~= 0 then held[id] = nil end  -- All events were late: its lease runs on.
  end
  end_holders(keys, held, now)
  if failures > 0 then forget_waits(keys, now, waits_max, FORGOTTEN_MAX + failures) end
end

-- End expired leases, up to 1,000 per call; each counts as a failed fetch.
local function sweep(all, now, retry, waits_max)
  local keys, flights, ends = {leases = all[1], waits = all[2], fails = all[3], holders = all[12]}, all[8], all[9]
  local text = string.format('%.0f', now)
  local over = redis.call('ZRANGE', keys.leases, '-inf', text, 'BYSCORE', 'LIMIT', 0, SWEPT_MAX, 'WITHSCORES')
  local ids = {}
  for i = 1, #over, 2 do
    ids[#ids + 1] = over[i]
    back_off(keys, over[i], over[i + 1] / 1000000, retry)
  end
  if #ids > 0 then
    redis.call('ZREM', keys.leases, unpack(ids))
    local held = read_holders(keys.holders, ids)
    for _, id in ipairs(ids) do
      held[id] = held[id] and entry_of(held[id]) or {0, NOBODY}
      add_earlier(held[id], held[id][2])
    end
    if keys.holders then end_holders(keys, held, now) end
  end
  forget_waits(keys, now, waits_max, FORGOTTEN_MAX)
  redis.call('ZREMRANGEBYSCORE', all[4], '-inf', string.format('%.6f', now / 1000000))
  local landed = redis.call('ZRANGE', ends, '-inf', text, 'BYSCORE', 'LIMIT', 0, FLIGHTS_SWEPT_MAX)
  if #landed > 0 then
    redis.call('HDEL', flights, unpack(landed))
    redis.call('ZREM', ends, unpack(landed))
  end
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

-- opic_4_lease: end expired leases, then lease pages, in the given order, each to one crawler. The caller chose them
-- from a replica; this function only checks leases, waits and hosts.
--   KEYS leases waits fails hosts freed polite crawldelays flights flightends head pagemeta holders blocks
--   ARGV retry-seconds delay-seconds cap unused blob most-pages-in-waits
--   blob = {nil, {expected freed} or nil, requests {n, seconds, ..}, ids, hosts, for each request: digest of its crawler's
--     name or '', for each request: how many pages a host with a delay may give it, 1 if absent}
-- A request is one for n pages, leased for `seconds`; it gets the next pages that are free. If pages or limits changed
-- elsewhere, so that `freed` is not as expected, or while the store is being restored, nothing is leased.
-- Returns {now, {lsn, digest, freed, leases}, running leases, for each request granted {place, end, delay in ms, ..},
--   refused {place, what, until, ..}, {place, metadata, ..} of the granted pages that have some}; what: 1 the page is
--   leased, 2 its host is blocked or its delay has not passed, 3 its host has reached its limit of pages in flight, until
--   the first of their leases ends, 4 the page is backing off.

-- Why a page can't be leased: nil if it can; else 1 to 4, and the time in microseconds when it can. The third result
-- is the host's pages in flight.
local function take_hindrance(keys, id, host, now, retry, host_delay, host_cap, plan, request)
  local lease_end = plan.pages[id] and now or redis.call('ZSCORE', keys[1], id)
  if lease_end then return 1, tonumber(lease_end) + retry * 1000000 end
  local wait = tonumber(redis.call('ZSCORE', keys[2], id))
  if wait and wait * 1000000 > now then return 4, wait * 1000000 end
  local given = plan.given[host]
  local free = host_delay > 0 and (plan.next_of[host] or tonumber(redis.call('ZSCORE', keys[4], host))) or 0
  local more = given and given.request == request and given.pages < plan.each[request]
  if not more and free * 1000000 > now then return 2, free * 1000000 end
  local flying = host_cap > 0 and (plan.flying[host] or in_flight(keys, host, now))
  if flying and #flying / 2 >= host_cap then
    local first = flying[2]
    for at = 4, #flying, 2 do first = math.min(first, flying[at]) end
    return 3, first
  end
  return nil, nil, flying
end

-- Until when a host is blocked, in microseconds; nil if it is not. What is over is forgotten.
local function take_block(keys, host, now)
  local till = redis.call('HGET', keys[13], host)
  if not till then return nil end
  if tonumber(till) * 1000000 > now then return tonumber(till) * 1000000 end
  redis.call('HDEL', keys[13], host)
  return nil
end

-- Write who leases pages {end, id, ..} from now on.
local function take_note(holders, out, crawlers, now)
  local ids, fields = {}, {}
  for i = 2, #out, 2 do ids[#ids + 1] = out[i] end
  local before = read_holders(holders, ids)
  for _, id in ipairs(ids) do
    local earlier = before[id] and string.sub(before[id], 9 + #NOBODY) or ''
    fields[#fields + 1], fields[#fields + 2] = id, struct.pack('<d', now) .. crawlers[id] .. earlier
  end
  for i = 1, #fields, VALUES_MAX - 1 do
    redis.call('HSET', holders, unpack(fields, i, math.min(i + VALUES_MAX - 2, #fields)))
  end
end

-- Write the new leases {end, id, ..}, the next free time of hosts, and the pages in flight of hosts with a limit.
local function take_write(keys, out, plan, now)
  if keys[12] then take_note(keys[12], out, plan.pages, now) end
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
  local known, requests, ids, names, crawlers, each = unpack(blob, 2, 7)
  if not (retry and delay and cap) then return redis.error_reply('OPICARGS expected numbers') end
  for i = 1, #ids do
    if not whole(ids[i], 0, BALANCE) or type(names[i]) ~= 'string' then return redis.error_reply('OPICARGS expected pages') end
  end

  local now = now_us()
  sweep(keys, now, retry, tonumber(args[6]))
  local there = redis.call('HMGET', keys[10], 'lsn', 'digest')
  local freed = redis.call('HGET', keys[5], 'n') or '0'
  if there[2] == 'restoring' or (known and known[1] ~= freed) then ids = {} end
  local running = redis.call('ZCOUNT', keys[1], '(' .. string.format('%.0f', now), '+inf')

  local granted, refused, out = {}, {}, {}
  local plan = {pages = {}, next_of = {}, flying = {}, given = {}, each = each or {}}
  local some_polite, some_delays = redis.call('EXISTS', keys[6]) == 1, redis.call('EXISTS', keys[7]) == 1
  local some_blocks = keys[13] and redis.call('EXISTS', keys[13]) == 1
  local request, left, until_us = 0, 0, nil
  for i = 1, #ids do
    while left == 0 and requests[2 * request + 1] do
      left, until_us = requests[2 * request + 1], math.floor(now + requests[2 * request + 2] * 1000000)
      request = request + 1
      granted[request], plan.each[request] = {}, plan.each[request] or 1
    end
    if left == 0 then break end
    local id, host = string.format('%.0f', ids[i]), names[i]
    local host_delay, host_cap = manners_of(keys, host, delay, cap, some_polite, some_delays)
    local what, till, flying
    local blocked = some_blocks and take_block(keys, host, now)
    if blocked then
      what, till = 2, blocked
    else
      what, till, flying = take_hindrance(keys, id, host, now, retry, host_delay, host_cap, plan, request)
    end
    if what then
      refused[#refused + 1], refused[#refused + 2], refused[#refused + 3] = i, what, math.ceil(till)
    else
      local page, at = granted[request], #granted[request]
      page[at + 1], page[at + 2], page[at + 3] = i, until_us, math.ceil(host_delay * 1000)
      left = left - 1
      out[#out + 1], out[#out + 2] = until_us, id
      plan.pages[id] = crawler_of(crawlers and crawlers[request])
      if host_delay > 0 then
        local given = plan.given[host]
        plan.next_of[host] = now / 1000000 + host_delay
        plan.given[host] = {request = request, pages = given and given.pages + 1 or 1}
      end
      if flying then
        flying[#flying + 1], flying[#flying + 2] = id, until_us
        plan.flying[host] = flying
      end
    end
  end
  take_write(keys, out, plan, now)
  local stamp = {there[1] or '', there[2] or '', freed, redis.call('ZCARD', keys[1])}
  return {now, stamp, running + #out / 2, granted, refused, take_metas(keys[11], granted, ids)}
end

-- opic_4_held: read a sorted set in parts.  KEYS set   ARGV least ('-inf' or '(' score), count, members, scores
-- `members` and `scores` are the last ones of the part before, as returned; '' for the first part. The next part begins
-- after the last of them that is unchanged. So it lacks no element, whatever was removed or added in between.
-- Returns {members, separated by line feeds; scores, as raw doubles}: parsing single RESP values is ten times slower;
-- nil if none of the members is there with its score.
local function held_part(keys, args)
  local from, at = nil, 1
  if args[3] == '' then  -- By rank: LIMIT would skip over all earlier elements one by one.
    from = redis.call('ZCARD', keys[1]) - redis.call('ZCOUNT', keys[1], args[1], '+inf')
  end
  for member in string.gmatch(args[3], '[^\n]+') do
    local score = tonumber(redis.call('ZSCORE', keys[1], member))
    if score == struct.unpack('<d', args[4], at) then from = redis.call('ZRANK', keys[1], member) + 1 end
    at = at + 8
  end
  if not from then return nil end
  local found = redis.call('ZRANGE', keys[1], from, from + tonumber(args[2]) - 1, 'WITHSCORES')
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

-- The present end of a lease, given the end that it was granted with; nil if it does not run any more.
local function present_end(leases, renewed, id, granted)
  local score = tonumber(redis.call('ZSCORE', leases, id))
  local last = tonumber(renewed and redis.call('ZSCORE', renewed, id .. '-' .. granted) or granted)
  return score == last and score or nil
end

-- opic_4_renew: set when leases end.  KEYS leases renewed flights flightends   ARGV seconds id until-us host ..
-- Only leases that still run are renewed. Returns {new end, {1 or 0 for each}}.
local function renew(keys, args)
  local now, done = now_us(), {}
  local until_us = math.floor(now + tonumber(args[1]) * 1000000)
  local text = string.format('%.0f', until_us)
  redis.call('ZREMRANGEBYSCORE', keys[2], '-inf', string.format('%.0f', now))
  for i = 2, #args, 3 do
    local id, host = args[i], args[i + 2]
    local last = present_end(keys[1], keys[2], id, args[i + 1])
    local runs = last ~= nil and last > now
    done[#done + 1] = runs and 1 or 0
    local packed = runs and redis.call('HGET', keys[3], host)
    if runs then
      redis.call('ZADD', keys[1], text, id)
      redis.call('ZADD', keys[2], text, id .. '-' .. args[i + 1])
    end
    if packed then
      local pages = cmsgpack.unpack(packed)
      for at = 1, #pages, 2 do
        if pages[at] == id and pages[at + 1] == last then pages[at + 1] = until_us end
      end
      redis.call('HSET', keys[3], host, cmsgpack.pack(pages))
      redis.call('ZADD', keys[4], 'GT', text, host)
    end
  end
  return {until_us, done}
end

-- opic_4_release: release leases of pages that were not fetched.  KEYS leases freed released waits holders renewed
--   ARGV id until-us ..
-- Only leases that still run are released. Returns the new count of `freed` and the released pages.
local function release(keys, args)
  local released, now = {}, now_us()
  for i = 1, #args, 2 do
    if present_end(keys[1], keys[6], args[i], args[i + 1]) then
      redis.call('ZREM', keys[1], args[i])
      released[#released + 1] = args[i]
    end
  end
  if #released > 0 then note_released(keys[2], keys[3], released) end
  end_holders({waits = keys[4], holders = keys[5]}, read_holders(keys[5], released), now)
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

-- opic_4_delays: set what robots.txt of hosts asks for, 0 for nothing.  KEYS crawldelays   ARGV host seconds ..
-- Writes only what differs: crawlers repeat their reports.
local function delays(keys, args)
  for i = 1, #args, 2 do
    local seconds = tonumber(args[i + 1]) ~= 0 and args[i + 1]
    if redis.call('HGET', keys[1], args[i]) ~= seconds then
      if seconds then redis.call('HSET', keys[1], args[i], seconds) else redis.call('HDEL', keys[1], args[i]) end
    end
  end
  return #args / 2
end

-- opic_4_block: lease no page of a host until then, in Unix seconds; 0 for an end.  KEYS blocks freed   ARGV host until
-- Calls for pages are told of a block by what they are refused. Where it ends earlier, its readers must read again.
local function block(keys, args)
  local till, before = tonumber(args[2]), tonumber(redis.call('HGET', keys[1], args[1])) or 0
  if not till then return redis.error_reply('OPICARGS expected a time') end
  if till * 1000000 > now_us() then
    redis.call('HSET', keys[1], args[1], string.format('%.6f', till))
  else
    redis.call('HDEL', keys[1], args[1])
  end
  if till < before then redis.call('HSET', keys[2], 'whole', redis.call('HINCRBY', keys[2], 'n', 1)) end
  return 1
end

-- opic_4_limit: set how many pages of a host may be read; 0 for any number.  KEYS limits freed   ARGV host limit
local function limit(keys, args)
  if not whole(tonumber(args[2]), 0, BALANCE) then return redis.error_reply('OPICARGS expected a number of pages') end
  if args[2] == '0' then redis.call('HDEL', keys[1], args[1]) else redis.call('HSET', keys[1], args[1], args[2]) end
  redis.call('HSET', keys[2], 'limits', redis.call('HINCRBY', keys[2], 'n', 1))
  return 1
end

-- opic_4_rules: replace the URL rules, if they are of a version.  KEYS rules   ARGV version document new-version
-- The version is '*' for any, '' for none yet. Returns 1 if they are replaced.
local function set_rules(keys, args)
  if args[1] ~= '*' and (redis.call('HGET', keys[1], 'version') or '') ~= args[1] then return 0 end
  redis.call('HSET', keys[1], 'document', args[2], 'version', args[3])
  return 1
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
redis.register_function('opic_4_renew', renew)
redis.register_function('opic_4_release', release)
redis.register_function('opic_4_polite', polite)
redis.register_function('opic_4_delays', delays)
redis.register_function('opic_4_block', block)
redis.register_function('opic_4_limit', limit)
redis.register_function('opic_4_rules', set_rules)
