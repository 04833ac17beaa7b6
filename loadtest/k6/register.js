// Registers one-shots for the next hour, RATE=500 a second for DURATION=30s, one by one, with VUS clients at least.
import { call, number, oneShot, promises } from './lib.js';

const rate = number('RATE', 500);
const vus = number('VUS', Math.max(100, Math.ceil(rate / 10)));

export const options = {
  scenarios: {
    register: {
      executor: 'constant-arrival-rate', rate, duration: __ENV.DURATION || '30s', preAllocatedVUs: vus, maxVUs: Math.max(200, rate * 2, vus),
    },
  },
  thresholds: Object.assign({ 'http_req_duration{name:createJob}': [`p(95)<${number('P95', 100)}`], dropped_iterations: ['count==0'] }, promises),
};

export default function () {
  call('createJob', 'POST', '/jobs', oneShot(Date.now() + 30 * 86400e3 + Math.random() * 3600e3), 201);
}
