-- Load for wrk: chat completions. Arguments after "--": MODE SIZE COUNT NAME
--   single    each request is all of its session: no session id
--   sessions  COUNT sessions at a time, of five turns each with a growing history
--   open      further turns of the COUNT sessions NAME-0, NAME-1, ... that are open already
-- SIZE: bytes of the first prompt. There are 256 prompts (64 with turns); 16 samples of each come in a row,
-- as a trainer sends them.
local SAMPLES, TURNS = 16, 5
local mode, size, count, name
local bodies, heads = {}, {}
local sent = 0

local function prompt(serial)
  local text = string.format("%08d ", serial * 7919) .. string.rep("the quick brown fox jumps over the lazy dog ", math.ceil(size / 44))
  return string.sub(text, 1, size)
end

local function body(serial, turns)
  local messages = { '{"role":"user","content":"' .. prompt(serial) .. '"}' }
  for turn = 2, turns do
    messages[#messages + 1] = '{"role":"assistant","content":"The answer is 42. I will call a tool to make sure, turn ' .. turn .. '."}'
    messages[#messages + 1] = '{"role":"user","content":"The tool says that it is 42, in all of the runs, turn ' .. turn .. '."}'
  end
  return '{"model":"m","max_tokens":64,"temperature":1.0,"messages":[' .. table.concat(messages, ",") .. "]}"
end

local function head(class, length, session)
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: " .. wrk.host .. "\r\nContent-Type: application/json\r\n"
    .. "X-Rollout-Class: " .. class .. "\r\n" .. session .. "Content-Length: " .. length .. "\r\n\r\n"
end

function init(arguments)
  mode, size, count, name = arguments[1], tonumber(arguments[2]), tonumber(arguments[3]), arguments[4]
  local prompts = mode == "single" and 256 or 64
  for serial = 0, prompts - 1 do
    if mode == "single" then
      local text = body(serial, 1)
      bodies[serial] = head("rlvr", #text, "") .. text
    else
      bodies[serial] = {}
      for turn = 1, TURNS do
        bodies[serial][turn] = body(serial, turn)
      end
    end
  end
end

local function turn_of(session, serial, turn)
  local text = bodies[serial % 64][turn]
  return head("agentic", #text, "X-Session-ID: " .. session .. "\r\n") .. text
end

function request()
  local n = sent
  sent = sent + 1
  if mode == "single" then
    return bodies[math.floor(n / SAMPLES) % 256]
  end
  if mode == "open" then
    local session = (n * 7919) % count
    return turn_of(name .. "-" .. session, session, 2)
  end
  local slot, round = n % count, math.floor(n / count)
  local serial = math.floor(round / TURNS) * count + slot
  return turn_of(name .. "-" .. serial, math.floor(serial / SAMPLES), round % TURNS + 1)
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'result {"requests":%d,"microseconds":%d,"refused":%d,"broken":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
