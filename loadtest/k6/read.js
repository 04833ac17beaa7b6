// Reads jobs, their executions, lists and previews, RATE=500 a second for DURATION=30s.
import { call, number, oneShot, promises, registerAll } from './lib.js';

const rate = number('RATE', 500);

export const options = {
  scenarios: {
    read: {
      executor: 'constant-arrival-rate', rate, duration: __ENV.DURATION || '30s', preAllocatedVUs: Math.max(100, Math.ceil(rate / 10)), maxVUs: Math.max(200, rate * 2),
    },
  },
  thresholds: Object.assign(
    { 'http_req_duration{name:getJob}': [`p(95)<${number('P95', 50)}`], 'http_req_duration{name:listJobs}': [`p(95)<${number('P95_LIST', 150)}`] },
    promises,
  ),
};

export function setup() {
  return { ids: registerAll(500, () => oneShot(Date.now() + 30 * 86400e3)) };
}

export default function ({ ids }) {
  const id = ids[Math.floor(Math.random() * ids.length)];
  const r = Math.random();
  if (r < 0.6) {
    call('getJob', 'GET', `/jobs/${id}`, undefined, 200);
  } else if (r < 0.8) {
    call('listExecutions', 'GET', `/jobs/${id}/executions?limit=20`, undefined, 200);
  } else if (r < 0.9) {
    call('listJobs', 'GET', '/jobs?limit=50', undefined, 200);
  } else {
    call('previewSchedule', 'POST', '/schedules/preview', { type: 'cron', cron_expr: '*/5 * * * *', timezone: 'Europe/Berlin' }, 200);
  }
}
