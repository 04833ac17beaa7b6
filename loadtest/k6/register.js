// Registers one-shots for the next hour, RATE=500 a second for DURATION=30s, one by one.
import { call, number, oneShot, promises } from './lib.js';

const rate = number('RATE', 500);

export const options = {
  scenarios: {
    register: {
      executor: 'constant-arrival-rate', rate, duration: __ENV.DURATION || '30s', preAllocatedVUs: Math.max(100, Math.ceil(rate / 10)), maxVUs: Math.max(200, rate * 2),
    },
  },
  thresholds: Object.assign({ 'http_req_duration{name:createJob}': [`p(95)<${number('P95', 100)}`], dropped_iterations: ['count==0'] }, promises),
};

export default function () {
  call('createJob', 'POST', '/jobs', oneShot(Date.now() + 3600e3 + Math.random() * 3600e3), 201);
}
