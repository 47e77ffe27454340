-- What a step keeps for people and crawlers, each within its bytes: the metadata of pages, and dead letters. Both are
-- outside the journal's replicas; what is dropped is counted in `metrics` (the keys are described in keys.py).

local LETTER_BYTES = 128  -- Of an entry besides its reason and its value; about as much is measured.
local LETTERS_KEPT_MAX = 100000
local LETTERS_DROPPED_MAX = 2000  -- In one call.
local META_BYTES = 64  -- Of an entry besides its value.

-- Keep the metadata of pages {metadata, pages, ..}; '' deletes it. The counted bytes stay below `most`: what does not
-- fit is dropped and counted, and so is what the page had before, which would be taken for its last. What a restore
-- wrote counts once it is replaced.
local function keep_metas(keys, metas, most)
  if #metas == 0 then return end
  local key, metrics = keys.pagemeta, keys.metrics
  local kept, dropped = tonumber(redis.call('HGET', metrics, 'meta_bytes') or 0), 0
  for i = 1, #metas, 2 do
    local size = metas[i] ~= '' and #metas[i] + META_BYTES or 0
    for _, page in ipairs(metas[i + 1]) do
      local id = string.format('%.0f', page)
      local before = redis.call('HGET', key, id)
      local rest = math.max(0, kept - (before and #before + META_BYTES or 0))
      local fits = size > 0 and rest + size <= most
      if fits then redis.call('HSET', key, id, metas[i]) elseif before then redis.call('HDEL', key, id) end
      if size > 0 and not fits then dropped = dropped + 1 end
      kept = rest + (fits and size or 0)
    end
  end
  redis.call('HSET', metrics, 'meta_bytes', string.format('%.0f', kept))
  if dropped > 0 then redis.call('HINCRBY', metrics, 'metas_dropped', dropped) end
end

local function letter_size(fields)
  local size = LETTER_BYTES
  for i = 1, #fields, 2 do
    if fields[i] == 'opic-error' or fields[i] == 'value' then size = size + #fields[i + 1] end
  end
  return size
end

-- The bytes of all letters before an entry: its field `before`.
local function letters_before(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'before' then return tonumber(fields[i + 1]) end
  end
end

local function letters_total(dead)
  local last = redis.call('XREVRANGE', dead, '+', '-', 'COUNT', 1)[1]
  return last and letters_before(last[2]) + letter_size(last[2]) or 0
end

-- Add dead letters {reason, partition, offset, index, value, size of the whole value, ..}; drop the oldest while all take more than `most` bytes, or are
-- too many, but never the newest. Letters go oldest first, so all together take the difference of two counts.
local function keep_letters(keys, letters, most)
  if #letters == 0 then return end
  local dead, metrics = keys.dead, keys.metrics
  local total = letters_total(dead)
  for i = 1, #letters, 6 do
    local fields = {'opic-error', letters[i], 'opic-topic', 'log', 'opic-partition', letters[i + 1], 'opic-offset',
      letters[i + 2], 'before', string.format('%.0f', total), 'value', letters[i + 4],
      'opic-value-bytes', letters[i + 5]}
    if letters[i + 3] ~= '' then  -- Of an array.
      fields[#fields + 1] = 'opic-index'
      fields[#fields + 1] = letters[i + 3]
    end
    redis.call('XADD', dead, '*', unpack(fields))
    total = total + letter_size(fields)
  end
  local dropped, bytes, id, count = 0, 0, '-', redis.call('XLEN', dead)
  while dropped < math.min(count - 1, LETTERS_DROPPED_MAX) do
    local entry = redis.call('XRANGE', dead, id, '+', 'COUNT', 1)[1]
    if total - letters_before(entry[2]) <= most and count - dropped <= LETTERS_KEPT_MAX then break end
    dropped, bytes, id = dropped + 1, bytes + letter_size(entry[2]), '(' .. entry[1]
  end
  if dropped == 0 then return end
  redis.call('XTRIM', dead, 'MAXLEN', count - dropped)
  redis.call('HINCRBY', metrics, 'letters_dropped', dropped)
  redis.call('HINCRBY', metrics, 'letters_dropped_bytes', bytes)
end
