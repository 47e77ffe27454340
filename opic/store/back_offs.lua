-- How leases end: by an event, or by their time; and the back-off of pages whose fetch failed. Part of one library with
-- journal.lua, whose step ends leases, and leases.lua. The keys are described in keys.py.

local SWEPT_MAX = 1000
local FLIGHTS_SWEPT_MAX = 1000  -- More than a call adds, so that they do not pile up.
local BACK_OFF_SECONDS_MAX = 86400
local NOBODY = '\0\0\0\0\0\0'      -- In place of the digest of a name, which has 6 bytes.
local EARLIER_MAX = 4               -- Crawlers with earlier leases that are remembered for a page.
local EARLIER_SECONDS = 3600        -- They are remembered for so long after the page was fetched.
local FORGET_SECONDS = 86400        -- A page is forgotten in `waits` and `fails` so long after its back-off is over.
local FORGOTTEN_MAX = 1000          -- Pages forgotten in one call, and one more for each that fails.
local WAITS_MAX = 250000            -- Pages in `waits`, for a caller that names no limit.

local TOLD_MAX = 2000

-- Tell the endpoints what a call changes of pages and hosts, apart from what its record in the journal tells. Fields:
--   n  LSN of the head at that time: the change comes after that record and before the next
--   t  time (us)
--   l  leases: end (us), page, delay (ms) of its host from then on; ..
--   w  back-offs: end (s), page; ..
--   f  pages whose leases were released
--   m  limit of a host: pages, host
--   a  addresses of hosts: address ('-' for none), host; ..
--   g  rests of politeness groups: end (us), group; ..
--   r  what hosts may do has changed otherwise: everything is to be read again
-- An endpoint that finds the last entry that it has read gone reads everything again. Returns the entry's id.
local function tell(keys, now, lsn, ...)
  return redis.call('XADD', keys.changes, 'MAXLEN', '~', TOLD_MAX, '*', 'n', lsn, 't', string.format('%.0f', now), ...)
end

-- A function that tells of changes: refused before it writes anything where the keys for that are not passed, and where
-- the crawl is being moved.
local function telling(call)
  return by_name(function(keys, args)
    if not keys.changes or not keys.head then return redis.error_reply('OPICARGS expected changes and head') end
    local refusal = stopped(keys)
    if refusal then return refusal end
    return call(keys, args)
  end)
end

local function head_lsn(keys)
  return redis.call('HGET', keys.head, 'lsn') or '0'
end

local function retry_of(times, retry)
  return math.min(retry * 2 ^ math.min(times - 1, 30), BACK_OFF_SECONDS_MAX)
end

in_chunks = function(values, call)
  for first = 1, #values, VALUES_MAX do call(first, unpack(values, first, math.min(first + VALUES_MAX - 1, #values))) end
end

-- Count a failed fetch. The page waits, from `from` (seconds), twice as long each time; or for `asked` seconds.
local function back_off(keys, id, from, retry, asked)
  local times = redis.call('HINCRBY', keys.fails, id, 1)
  local till = string.format('%.6f', from + (asked or retry_of(times, retry)))
  redis.call('ZADD', keys.waits, till, id)
  return till
end

-- Forget pages whose back-off has been over for a day. If there are more than `waits_max`, also forget those whose
-- back-off ends first.
local function forget_waits(keys, now, waits_max, most)
  local past = string.format('%.6f', now / 1000000 - FORGET_SECONDS)
  local ids = redis.call('ZRANGE', keys.waits, '-inf', past, 'BYSCORE', 'LIMIT', 0, most)
  local over = math.min(redis.call('ZCARD', keys.waits) - (waits_max or WAITS_MAX), most)
  if #ids < over then ids = redis.call('ZRANGE', keys.waits, 0, over - 1) end
  if #ids == 0 then return end
  in_chunks(ids, function(_, ...) redis.call('ZREM', keys.waits, ...) redis.call('HDEL', keys.fails, ...) end)
  if not keys.holders or redis.call('EXISTS', keys.holders) == 0 then return end
  in_chunks(ids, function(first, ...)
    for i, leased in ipairs(redis.call('ZMSCORE', keys.leases, ...)) do
      if not leased then redis.call('HDEL', keys.holders, ids[first + i - 1]) end
    end
  end)
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

-- Members with their scores: score member, .. as text. Others are left out.
local function scores_text(key, members, behind)
  local told = {}
  in_chunks(members, function(first, ...)
    for i, score in ipairs(redis.call('ZMSCORE', key, ...)) do
      if score then told[#told + 1] = score .. ' ' .. members[first + i - 1] .. behind end
    end
  end)
  return table.concat(told)
end

-- A fetch ends the page's lease, whoever reports it, unless it belongs to an earlier lease of the page. A failure starts
-- a back-off, which doubles each time, up to a day, unless its event asks for another wait: {number of the fetch,
-- seconds, ..}. `lsn` is that of the record.
end_leases = function(keys, fetches, senders, retry, waits_max, asked, lsn)
  local ids, ended, well, failed_ids, late_ids, now, waits = {}, {}, {}, {}, {}, now_us(), {}
  for i = 1, #asked, 2 do waits[asked[i]] = asked[i + 1] end
  for i = 1, #fetches, 3 do ids[#ids + 1] = string.format('%.0f', fetches[i]) end
  if #ids == 0 then return end
  local held, waiting = read_holders(keys.holders, ids), redis.call('EXISTS', keys.waits, keys.fails) > 0
  local plain_end = {0, NOBODY}
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
    elseif entry then
      held[id] = plain_end  -- Its next event in this batch finds no lease.
    end
    if late then late_ids[#late_ids + 1] = id else ended[#ended + 1] = id end
    if not failed then
      well[#well + 1] = id
    elseif not late then  -- The failure of a late one was counted when its lease expired.
      clear()
      back_off(keys, id, fetches[3 * i], retry, waits[i])
      failed_ids[#failed_ids + 1], waiting = id, true
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
  if #failed_ids > 0 then forget_waits(keys, now, waits_max, FORGOTTEN_MAX + #failed_ids) end
  if #failed_ids + #late_ids > 0 then
    tell(keys, now, lsn, 'w', scores_text(keys.waits, failed_ids, ' '), 'l', scores_text(keys.leases, late_ids, ' 0 '))
  end
end

-- Note the addresses of hosts {host, address, ..}, '' for none any more. Most are as before: crawlers repeat them.
note_addresses = function(keys, addresses, lsn)
  local told = {}
  for i = 1, #addresses, 2 do
    local host, address = addresses[i], addresses[i + 1]
    if (redis.call('HGET', keys.addresses, host) or '') ~= address then
      if address == '' then redis.call('HDEL', keys.addresses, host) else redis.call('HSET', keys.addresses, host, address) end
      told[#told + 1] = (address == '' and '-' or address) .. ' ' .. host
    end
  end
  if #told > 0 then tell(keys, now_us(), lsn, 'a', table.concat(told, ' ')) end
end

-- End expired leases, up to 1,000 per call; each counts as a failed fetch. Returns the back-offs {end, id, ..}.
local function sweep(keys, now, retry, waits_max)
  local text = string.format('%.0f', now)
  local over = redis.call('ZRANGE', keys.leases, '-inf', text, 'BYSCORE', 'LIMIT', 0, SWEPT_MAX, 'WITHSCORES')
  local ids, waits = {}, {}
  for i = 1, #over, 2 do
    ids[#ids + 1] = over[i]
    waits[i], waits[i + 1] = back_off(keys, over[i], over[i + 1] / 1000000, retry), over[i]
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
  redis.call('ZREMRANGEBYSCORE', keys.hosts, '-inf', string.format('%.6f', now / 1000000))
  local landed = redis.call('ZRANGE', keys.flightends, '-inf', text, 'BYSCORE', 'LIMIT', 0, FLIGHTS_SWEPT_MAX)
  if #landed > 0 then
    redis.call('HDEL', keys.flights, unpack(landed))
    redis.call('ZREM', keys.flightends, unpack(landed))
  end
  return waits
end
