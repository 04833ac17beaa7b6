// What a region sees by day, with jobs that are due in a month, so that none fires in a later run: registrations, reads, updates, pauses, resumes, triggers and cancels, RATE=200 a second for DURATION=30s.
import { call, number, oneShot, promises, registerAll } from './lib.js';

const rate = number('RATE', 200);

export const options = {
  scenarios: {
    mixed: {
      executor: 'constant-arrival-rate', rate, duration: __ENV.DURATION || '30s', preAllocatedVUs: Math.max(100, Math.ceil(rate / 5)), maxVUs: Math.max(200, rate * 2),
    },
  },
  thresholds: Object.assign(
    { 'http_req_duration{name:createJob}': [`p(95)<${number('P95', 150)}`], 'http_req_duration{name:getJob}': [`p(95)<${number('P95_READ', 100)}`] },
    promises,
  ),
};

export function setup() {
  return { ids: registerAll(1000, () => oneShot(Date.now() + 30 * 86400e3)) };
}

// Each VU changes jobs of its own, so that no change meets another.
let mine = [];

export default function ({ ids }) {
  const r = Math.random();
  if (r < 0.5) {
    call('getJob', 'GET', `/jobs/${ids[Math.floor(Math.random() * ids.length)]}`, undefined, 200);
  } else if (r < 0.8 || mine.length === 0) {
    const made = call('createJob', 'POST', '/jobs', oneShot(Date.now() + 30 * 86400e3), 201);
    if (made.status === 201 && mine.length < 50) {
      mine.push(made.json('job_id'));
    }
  } else if (r < 0.9) {
    const id = mine[Math.floor(Math.random() * mine.length)];
    call('patchJob', 'PATCH', `/jobs/${id}`, { labels: { k6: `${Date.now()}` } }, 200, { 'If-Match': '*', 'Content-Type': 'application/merge-patch+json' });
  } else if (r < 0.95) {
    const id = mine[Math.floor(Math.random() * mine.length)];
    call('pauseJob', 'POST', `/jobs/${id}/pause`, undefined, 200);
    call('resumeJob', 'POST', `/jobs/${id}/resume`, undefined, 200);
  } else if (r < 0.97) {
    call('triggerJob', 'POST', `/jobs/${mine[0]}/trigger`, undefined, 202);
  } else {
    call('cancelJob', 'POST', `/jobs/${mine.pop()}/cancel`, undefined, 200);
  }
}
