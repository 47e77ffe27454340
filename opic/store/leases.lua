-- Leases and politeness: the server side of opic/frontier. This file, journal.lua and back_offs.lua are one library; keys.py
-- describes the keys. Times are those of the server, so that several endpoints agree.

-- A finite number of 0 or more; nil if a text is none.
local function amount(text)
  local number = tonumber(text)
  return number and number >= 0 and number < BALANCE and number or nil
end

-- The scores of members of a sorted set: member -> score. One command takes a fifth of the time of one each.
local function scores_of(key, members)
  local found = {}
  if redis.call('EXISTS', key) == 0 then return found end
  in_chunks(members, function(first, ...)
    for i, score in ipairs(redis.call('ZMSCORE', key, ...)) do
      if score then found[members[first + i - 1]] = tonumber(score) end
    end
  end)
  return found
end

-- The pages of a host that are in flight: leased pages whose leases still run unchanged.
local function in_flight(keys, host, now)
  local packed, found = redis.call('HGET', keys.flights, host), {}
  local pages = packed and cmsgpack.unpack(packed) or {}
  for i = 1, #pages, 2 do
    local score = tonumber(redis.call('ZSCORE', keys.leases, pages[i]))
    if score == pages[i + 1] and score > now then found[#found + 1], found[#found + 2] = pages[i], pages[i + 1] end
  end
  return found
end

-- The delay in seconds of a host, and its limit on pages in flight; 0 means no limit.
local function politeness_of(keys, host, delay, cap, some_polite, some_delays)
  local set_delay, set_cap
  if some_polite then
    set_delay, set_cap = string.match(redis.call('HGET', keys.polite, host) or '', '^(%S+) (%S+)')
    set_delay, set_cap = tonumber(set_delay), tonumber(set_cap)
  end
  if not set_delay and some_delays then
    delay = math.max(delay, tonumber(redis.call('HGET', keys.crawldelays, host)) or 0)
  end
  return set_delay or delay, set_cap or cap
end

-- opic_5_lease: end expired leases, then lease pages, in the given order, each to one crawler. The caller chose them
-- from a replica; this function only checks leases, waits and hosts.
--   KEYS leases waits fails hosts changes polite crawldelays flights flightends head pagemeta holders blocks
--   ARGV retry-seconds delay-seconds cap blob most-pages-in-waits
--   blob = {requests {n, seconds, ..}, ids, hosts, for each request: digest of its crawler's name or '', for each request:
--     how many pages a host with a delay may give it}
-- A request is one for n pages, leased for `seconds`; it gets the next pages that are free. While the store is being
-- restored, nothing is leased.
-- Returns {now, {lsn, digest}, id of the entry in `changes` or '', for each request granted {place, end, delay in ms, ..},
--   refused {place, what, until, ..}, {place, metadata, -place, name, ..} of the granted pages that have some}; what: 1 the page is
--   leased, 2 its host is blocked or its delay has not passed, 3 its host has reached its limit of pages in flight, until
--   the first of their leases ends, 4 the page is backing off.

-- Until when a host is blocked, in microseconds; nil if it is not. A block that is over is noted in the plan.
local function take_block(keys, host, now, plan)
  local till = tonumber(redis.call('HGET', keys.blocks, host) or nil)
  if not till or till * 1000000 > now then return till and till * 1000000 end
  plan.unblocked[#plan.unblocked + 1] = host
  return nil
end

-- Why a page can't be leased: nil if it can; else 1 to 4, and the time in microseconds when it can. The third result
-- is the host's pages in flight.
local function take_hindrance(keys, id, host, now, retry, host_delay, host_cap, plan, request)
  local blocked = plan.some_blocks and take_block(keys, host, now, plan)
  if blocked then return 2, blocked end
  local lease_end = plan.pages[id] and now or plan.leases[id]
  if lease_end then return 1, lease_end + retry * 1000000 end
  local wait = plan.waits[id]
  if wait and wait * 1000000 > now then return 4, wait * 1000000 end
  local given = plan.given[host]
  local free = host_delay > 0 and (plan.next_of[host] or plan.hosts[host]) or 0
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

-- Plan when a host with a delay may give its next page, and how many it gave to this request.
local function take_delay(plan, host, free, request)
  local given = plan.given[host]
  plan.next_of[host] = free
  plan.given[host] = {request = request, pages = given and given.pages + 1 or 1}
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
  in_chunks(fields, function(_, ...) redis.call('HSET', holders, ...) end)
end

-- Write the new leases {end, id, ..}, the next free time of hosts, and the pages in flight of hosts with a limit. Forget
-- the blocks that are over.
local function take_write(keys, out, plan, now)
  in_chunks(plan.unblocked, function(_, ...) redis.call('HDEL', keys.blocks, ...) end)
  if keys.holders then take_note(keys.holders, out, plan.pages, now) end
  in_chunks(out, function(_, ...) redis.call('ZADD', keys.leases, ...) end)
  local rests = {}
  for host, free in pairs(plan.next_of) do rests[#rests + 1], rests[#rests + 2] = string.format('%.6f', free), host end
  in_chunks(rests, function(_, ...) redis.call('ZADD', keys.hosts, ...) end)
  for host, pages in pairs(plan.flying) do
    local last = 0
    for at = 2, #pages, 2 do last = math.max(last, pages[at]) end
    redis.call('HSET', keys.flights, host, cmsgpack.pack(pages))
    redis.call('ZADD', keys.flightends, string.format('%.0f', last), host)
  end
end

-- The metadata and names of pages that were granted {place, end, delay, ..}: {place, metadata, -place, name, ..}.
local function take_metas(key, granted, ids)
  local metas = {}
  if redis.call('EXISTS', key) == 0 then return metas end
  for _, pages in ipairs(granted) do
    for at = 1, #pages, 3 do
      local meta = redis.call('HGET', key, ids[pages[at]])
      if meta then metas[#metas + 1], metas[#metas + 2] = pages[at], meta end
      local name = redis.call('HGET', key, string.format('%.0f', -1 - tonumber(ids[pages[at]])))
      if name then metas[#metas + 1], metas[#metas + 2] = -pages[at], name end
    end
  end
  return metas
end

-- Ids of pages as text; nil if one is none, or lacks the name of its host.
local function take_ids(ids, names)
  local texts = {}
  for i = 1, #ids do
    if not whole(ids[i], 0, BALANCE) or type(names[i]) ~= 'string' then return nil end
    texts[i] = string.format('%.0f', ids[i])
  end
  return texts
end

-- Whether each request has a number of pages, seconds, a crawler's name, and a number of pages of a host.
local function take_requests(requests, crawlers, each)
  for i = 1, #requests, 2 do
    local of = (i + 1) / 2
    if not whole(requests[i], 0, BALANCE) or not amount(requests[i + 1]) or type(crawlers[of]) ~= 'string'
      or not whole(each[of], 0, BALANCE) then return false end
  end
  return true
end

-- Tell of new leases {'end id delay', ..} and of back-offs {end, id, ..}; '' if there are none.
local function take_tell(keys, now, lsn, told, waits)
  if #told + #waits == 0 then return '' end
  if #waits == 0 then return tell(keys, now, lsn, 'l', table.concat(told, ' ')) end
  return tell(keys, now, lsn, 'l', table.concat(told, ' '), 'w', table.concat(waits, ' '))
end

local function take(keys, args)
  local retry, delay, cap, waits_max = amount(args[1]), amount(args[2]), amount(args[3]), amount(args[5])
  local requests, ids, names, crawlers, each = unpack(cmsgpack.unpack(args[4]), 1, 5)
  if not (retry and delay and cap and waits_max) then return redis.error_reply('OPICARGS expected numbers') end
  if not take_requests(requests, crawlers, each) then return redis.error_reply('OPICARGS expected requests') end
  ids = take_ids(ids, names)
  if not ids then return redis.error_reply('OPICARGS expected pages') end

  local now, there = now_us(), redis.call('HMGET', keys.head, 'lsn', 'digest')
  if there[2] == 'restoring' then return {now, {there[1] or '', there[2]}, '', {}, {}, {}} end
  local waits = sweep(keys, now, retry, waits_max)

  local granted, refused, out, told = {}, {}, {}, {}
  local plan = {pages = {}, next_of = {}, flying = {}, given = {}, unblocked = {}, each = each}
  plan.leases, plan.waits, plan.hosts = scores_of(keys.leases, ids), scores_of(keys.waits, ids), scores_of(keys.hosts, names)
  plan.some_blocks = redis.call('EXISTS', keys.blocks) == 1
  local some_polite, some_delays = redis.call('EXISTS', keys.polite) == 1, redis.call('EXISTS', keys.crawldelays) == 1
  local request, left, until_us, until_text = 0, 0, nil, nil
  for i = 1, #ids do
    while left == 0 and requests[2 * request + 1] do
      left, until_us = requests[2 * request + 1], math.floor(now + requests[2 * request + 2] * 1000000)
      request, until_text = request + 1, string.format('%.0f', until_us)
      granted[request] = {}
    end
    if left == 0 then break end
    local id, host = ids[i], names[i]
    local host_delay, host_cap = politeness_of(keys, host, delay, cap, some_polite, some_delays)
    local what, till, flying = take_hindrance(keys, id, host, now, retry, host_delay, host_cap, plan, request)
    if what then
      refused[#refused + 1], refused[#refused + 2], refused[#refused + 3] = i, what, math.ceil(till)
    else
      local page, at = granted[request], #granted[request]
      page[at + 1], page[at + 2], page[at + 3] = i, until_us, math.ceil(host_delay * 1000)
      left = left - 1
      out[#out + 1], out[#out + 2] = until_text, id
      told[#told + 1] = until_text .. ' ' .. id .. ' ' .. page[at + 3]
      plan.pages[id] = crawler_of(crawlers[request])
      if host_delay > 0 then take_delay(plan, host, now / 1000000 + host_delay, request) end
      if flying then
        flying[#flying + 1], flying[#flying + 2] = id, until_us
        plan.flying[host] = flying
      end
    end
  end
  take_write(keys, out, plan, now)
  local change = take_tell(keys, now, there[1] or '0', told, waits)
  return {now, {there[1] or '', there[2] or ''}, change, granted, refused, take_metas(keys.pagemeta, granted, ids)}
end

-- opic_5_held: read a sorted set in parts.  KEYS set   ARGV least ('-inf' or '(' score), count, members, scores
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

-- The present end of a lease, given the end that it was granted with; nil if it does not run any more.
local function present_end(keys, id, granted, now)
  local score = tonumber(redis.call('ZSCORE', keys.leases, id) or nil)
  local last = tonumber(redis.call('ZSCORE', keys.renewed, id .. '-' .. granted) or granted)
  return score == last and score > now and score or nil
end

-- Whether arguments from one on are of leases: id, end as granted, and as many others each as to take `of` in all.
local function are_leases(args, first, of)
  if (#args - first + 1) % of ~= 0 then return false end
  for i = first, #args, of do
    if not amount(args[i]) or not amount(args[i + 1]) then return false end
  end
  return true
end

-- opic_5_renew: set when leases end.  KEYS leases renewed flights flightends changes head   ARGV seconds id until-us host ..
-- Only leases that still run are renewed. Returns {new end, {1 or 0 for each}}.
local function renew(keys, args)
  if not amount(args[1]) or not are_leases(args, 2, 3) then return redis.error_reply('OPICARGS expected leases') end
  local now, done, told = now_us(), {}, {}
  local until_us = math.floor(now + tonumber(args[1]) * 1000000)
  local text = string.format('%.0f', until_us)
  redis.call('ZREMRANGEBYSCORE', keys.renewed, '-inf', string.format('%.0f', now))
  for i = 2, #args, 3 do
    local id, host = args[i], args[i + 2]
    local last = present_end(keys, id, args[i + 1], now)
    done[#done + 1] = last and 1 or 0
    local packed = last and redis.call('HGET', keys.flights, host)
    if last then
      told[#told + 1] = text .. ' ' .. id .. ' 0'
      redis.call('ZADD', keys.leases, text, id)
      redis.call('ZADD', keys.renewed, text, id .. '-' .. args[i + 1])
    end
    if packed then
      local pages = cmsgpack.unpack(packed)
      for at = 1, #pages, 2 do
        if pages[at] == id and pages[at + 1] == last then pages[at + 1] = until_us end
      end
      redis.call('HSET', keys.flights, host, cmsgpack.pack(pages))
      redis.call('ZADD', keys.flightends, 'GT', text, host)
    end
  end
  if #told > 0 then tell(keys, now, head_lsn(keys), 'l', table.concat(told, ' ')) end
  return {until_us, done}
end

-- opic_5_release: release leases of pages that were not fetched.  KEYS leases changes head waits holders renewed
--   ARGV id until-us ..
-- Only leases that still run are released. Returns the released pages.
local function release(keys, args)
  if not are_leases(args, 1, 2) then return redis.error_reply('OPICARGS expected leases') end
  local released, now = {}, now_us()
  for i = 1, #args, 2 do
    if present_end(keys, args[i], args[i + 1], now) then
      redis.call('ZREM', keys.leases, args[i])
      released[#released + 1] = args[i]
    end
  end
  if #released > 0 then tell(keys, now, head_lsn(keys), 'f', table.concat(released, ' ')) end
  end_holders(keys, read_holders(keys.holders, released), now)
  return released
end

-- opic_5_polite: replace all rules for hosts.  KEYS polite changes head   ARGV host rule ..
local function polite(keys, args)
  if #args % 2 ~= 0 then return redis.error_reply('OPICARGS a rule for each host') end
  for i = 2, #args, 2 do
    local numbers = 0
    for text in string.gmatch(args[i], '%S+') do numbers = numbers + ((text == '-' or amount(text)) and 1 or 9) end
    if numbers ~= 2 and numbers ~= 3 then return redis.error_reply('OPICARGS bad rule') end
  end
  local before = redis.call('HGETALL', keys.polite)
  for i = 1, #before, 2 do redis.call('HDEL', keys.polite, before[i]) end
  for i = 1, #args, 2 do redis.call('HSET', keys.polite, args[i], args[i + 1]) end
  tell(keys, now_us(), head_lsn(keys), 'r', '1')
  return #args / 2
end

-- opic_5_delays: set what robots.txt of hosts asks for, 0 for nothing.  KEYS crawldelays head   ARGV host seconds ..
-- Writes only what differs: crawlers repeat their reports.
local function delays(keys, args)
  if #args % 2 ~= 0 then return redis.error_reply('OPICARGS a delay for each host') end
  for i = 2, #args, 2 do
    if not amount(args[i]) then return redis.error_reply('OPICARGS bad delay') end
  end
  local refusal = stopped(keys)
  if refusal then return refusal end
  for i = 1, #args, 2 do
    local seconds = tonumber(args[i + 1]) ~= 0 and args[i + 1]
    if redis.call('HGET', keys.crawldelays, args[i]) ~= seconds then
      if seconds then redis.call('HSET', keys.crawldelays, args[i], seconds) else redis.call('HDEL', keys.crawldelays, args[i]) end
    end
  end
  return #args / 2
end

-- opic_5_block: lease no page of a host until then, in Unix seconds; 0 for an end.  KEYS blocks changes head   ARGV host until
-- Calls for pages are told of a block by what they are refused. Where it ends earlier, its readers must read again.
local function block(keys, args)
  local till = #args == 2 and amount(args[2])
  if not till then return redis.error_reply('OPICARGS expected a time') end
  local before = tonumber(redis.call('HGET', keys.blocks, args[1]) or 0)
  if till * 1000000 > now_us() then
    redis.call('HSET', keys.blocks, args[1], string.format('%.6f', till))
  else
    redis.call('HDEL', keys.blocks, args[1])
  end
  if till < before then tell(keys, now_us(), head_lsn(keys), 'r', '1') end
  return 1
end

-- opic_5_limit: set how many pages of a host may be read; 0 for any number.  KEYS limits changes head   ARGV host limit
local function limit(keys, args)
  if #args ~= 2 or not string.find(args[2], '^%d+$') then return redis.error_reply('OPICARGS expected a number of pages') end
  if args[2] == '0' then redis.call('HDEL', keys.limits, args[1]) else redis.call('HSET', keys.limits, args[1], args[2]) end
  tell(keys, now_us(), head_lsn(keys), 'm', args[2] .. ' ' .. args[1])
  return 1
end

-- opic_5_claim: begin the rests of politeness groups, each for a page that was leased of one of its hosts. A lease counts
-- only if this call grants it: the hosts of a group may be in many shards, and this one keeps when the group is free.
--   KEYS grouptimes polite changes head   ARGV group delay-ms ..
-- What an operator set for the group's name counts instead of the delay; a host without a delay is not held back.
-- Returns {now, id of the entry in `changes` or '', {for each: when its rest ends (us), 0 without one; negative: when the
-- one that runs ends, so the page may not be fetched}}.
local function claim(keys, args)
  for i = 1, #args, 2 do
    if not amount(args[i + 1]) then return redis.error_reply('OPICARGS expected a delay for each group') end
  end
  local now, ends, rests, told = now_us(), {}, {}, {}
  redis.call('ZREMRANGEBYSCORE', keys.grouptimes, '-inf', string.format('%.6f', now / 1000000))
  for i = 1, #args, 2 do
    local group = args[i]
    local own = tonumber(string.match(redis.call('HGET', keys.polite, group) or '', '^(%S+)'))
    local delay_us = math.floor(own and own * 1000000 or args[i + 1] * 1000)
    local runs = delay_us > 0 and (rests[group] or redis.call('ZSCORE', keys.grouptimes, group))
    if runs then
      ends[#ends + 1] = -math.ceil(runs * 1000000)
    elseif delay_us > 0 then
      local till = now + delay_us
      rests[group], ends[#ends + 1] = string.format('%.6f', till / 1000000), till
      redis.call('ZADD', keys.grouptimes, rests[group], group)
      told[#told + 1] = string.format('%.0f', till) .. ' ' .. group
    else
      ends[#ends + 1] = 0
    end
  end
  local change = #told > 0 and tell(keys, now, head_lsn(keys), 'g', table.concat(told, ' ')) or ''
  return {now, change, ends}
end

-- opic_5_rules: replace the URL rules, if they are of a version.  KEYS rules head   ARGV version document new-version
-- The version is '*' for any, '' for none yet. Returns 1 if they are replaced.
local function set_rules(keys, args)
  if #args ~= 3 then return redis.error_reply('OPICARGS expected a version, a document and a version') end
  local refusal = stopped(keys)
  if refusal then return refusal end
  if args[1] ~= '*' and (redis.call('HGET', keys.rules, 'version') or '') ~= args[1] then return 0 end
  redis.call('HSET', keys.rules, 'document', args[2], 'version', args[3])
  return 1
end

-- opic_5_flights: count the pages of hosts that are in flight.  KEYS as of opic_5_lease   ARGV host ..
local function flights(keys, args)
  local counts, now = {}, now_us()
  for i = 1, #args do counts[i] = #in_flight(keys, args[i], now) / 2 end
  return counts
end

-- opic_5_now: return the server's time in microseconds, by which the leases of a shard run.  KEYS leases
-- The key selects the server of a cluster.
redis.register_function{function_name='opic_5_now', callback=now_us, flags={'no-writes'}}
redis.register_function{function_name='opic_5_held', callback=held_part, flags={'no-writes'}}
redis.register_function{function_name='opic_5_flights', callback=by_name(flights), flags={'no-writes'}}
redis.register_function('opic_5_lease', telling(take))
redis.register_function('opic_5_renew', telling(renew))
redis.register_function('opic_5_release', telling(release))
redis.register_function('opic_5_polite', telling(polite))
redis.register_function('opic_5_delays', by_name(delays))
redis.register_function('opic_5_block', telling(block))
redis.register_function('opic_5_limit', telling(limit))
redis.register_function('opic_5_claim', telling(claim))
redis.register_function('opic_5_rules', by_name(set_rules))
