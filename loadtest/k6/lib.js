// What the scenarios share: where the API and the sink are, the requests, and the sink's account of what fired.
import http from 'k6/http';
import { check, fail } from 'k6';
import { Counter, Trend } from 'k6/metrics';

export const server = __ENV.MINUTEHAND_SERVER || 'http://127.0.0.1:8080';
// Where jobs call, and where this machine asks how late they did. Behind a load balancer these differ.
export const target = __ENV.MINUTEHAND_SINK || 'http://127.0.0.1:9000';
const stats = (__ENV.MINUTEHAND_SINK_STATS || target) + '/_stats';

export const lateness = new Trend('fire_lateness', true);
export const fired = new Counter('fires');
export const duplicates = new Counter('fires_duplicate');
export const early = new Counter('fires_early');
export const missing = new Counter('fires_missing');

// number reads a setting that must be positive.
export function number(name, usual) {
  const n = Number(__ENV[name] === undefined ? usual : __ENV[name]);
  if (!(n > 0)) {
    throw new Error(`${name} must be a positive number`);
  }
  return n;
}

function params(name, headers) {
  const h = Object.assign({ 'Content-Type': 'application/json' }, headers);
  if (__ENV.MINUTEHAND_TOKEN) {
    h.Authorization = `Bearer ${__ENV.MINUTEHAND_TOKEN}`;
  }
  return { headers: h, tags: { name }, timeout: '30s' };
}

// call makes a request to the API, and checks its status. The name is the operation's, so that its metrics stand apart.
export function call(name, method, path, body, want, headers) {
  const r = http.request(method, `${server}/api/v1${path}`, body === undefined ? null : JSON.stringify(body), params(name, headers));
  check(r, { [`${name} is answered ${want}`]: (x) => x.status === want });
  return r;
}

export function oneShot(at, size) {
  return {
    name: 'k6', type: 'one_shot', run_at: new Date(at).toISOString(),
    target: { kind: 'http_webhook', url: `${target}/hook`, body: { padding: 'x'.repeat(size || 128) } },
  };
}

export function everySecond(from, until) {
  return {
    name: 'k6', type: 'interval', every: '1s', start_at: new Date(from).toISOString(), end_at: new Date(until).toISOString(),
    target: { kind: 'http_webhook', url: `${target}/hook`, body: { padding: 'x'.repeat(128) } },
  };
}

// registerAll registers jobs in batches, and returns their ids. Each batch is tried again under its key until it is answered.
export function registerAll(n, job) {
  const size = 500;
  const ids = [];
  for (let done = 0; done < n; done += size) {
    const jobs = [];
    for (let i = 0; i < Math.min(size, n - done); i++) {
      jobs.push(job());
    }
    const key = `k6-${Date.now()}-${Math.random()}`;
    let r = null;
    for (let tries = 0; tries < 20 && (r === null || r.status !== 200); tries++) {
      r = http.post(`${server}/api/v1/jobs:batch`, JSON.stringify({ jobs }), params('createJobs', { 'Idempotency-Key': key }));
    }
    if (r.status !== 200) {
      fail(`a batch was answered ${r.status}: ${r.body}`);
    }
    r.json('results').forEach((x) => ids.push(x.job.job_id));
  }
  return ids;
}

// sunk asks the sink what has come in, and adds how late it came to the trend.
export function sunk() {
  const r = http.get(`${stats}?samples=2000`, { tags: { name: 'sink' } });
  const s = r.json();
  (s.lateness_ms || []).forEach((ms) => lateness.add(ms));
  return s;
}

// settle adds the sink's final account to the metrics: what came since `before`, of `want` that were due.
export function settle(before, now, want) {
  fired.add(now.received - before.received);
  duplicates.add(now.duplicates - before.duplicates);
  early.add(now.early - before.early);
  missing.add(Math.max(0, want - (now.received - before.received) + (now.duplicates - before.duplicates)));
}

// The promises that hold in every scenario.
export const answered = { http_req_failed: ['rate<0.001'] };

export const promises = Object.assign({ checks: ['rate>0.999'] }, answered);

export const accounted = { fires_missing: ['count==0'], fires_duplicate: ['count==0'], fires_early: ['count==0'] };
