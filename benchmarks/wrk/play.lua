-- Plays a file of requests, one a line: METHOD PATH [BODY]. Arguments: the file, and where to begin.
-- Prints one line of JSON for the program that started it; latencies are wrk's, in microseconds.
local prepared, at = {}, 0

function init(args)
  wrk.headers['Content-Type'] = 'application/json'
  for line in io.lines(args[1]) do
    local method, path, body = line:match('^(%S+) (%S+) ?(.*)$')
    prepared[#prepared + 1] = wrk.format(method, path, nil, body ~= '' and body or nil)
  end
  at = tonumber(args[2]) or 0
end

function request()
  at = at % #prepared + 1
  return prepared[at]
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "bytes": %d, "refused": %d, "broken": %d, "timeouts": %d, '
      .. '"p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, errors.status,
    errors.connect + errors.read + errors.write, errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(90) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
