// JOBS=10000 one-shots, all due at one instant. Nothing may be missing, early or double; LATE_P99 (ms) is how late they may be.
import { sleep } from 'k6';
import { accounted, answered, number, oneShot, registerAll, settle, sunk } from './lib.js';

const jobs = number('JOBS', 10000);
const patience = number('PATIENCE', 120); // seconds after the instant

export const options = {
  scenarios: { stampede: { executor: 'shared-iterations', vus: 1, iterations: 1, maxDuration: '30m' } },
  setupTimeout: '20m',
  thresholds: Object.assign({ fire_lateness: [`p(99)<${number('LATE_P99', 5000)}`] }, accounted, answered),
};

export function setup() {
  const at = Date.now() + 1000 * number('AHEAD', Math.max(10, Math.ceil(jobs / 2000)));
  registerAll(jobs, () => oneShot(at));
  if (Date.now() > at) {
    throw new Error('registering took longer than AHEAD; give more seconds');
  }
  return { at, before: sunk() };
}

export default function ({ at, before }) {
  sleep(Math.max(0, (at - Date.now()) / 1000));
  let now = sunk();
  while (now.received - before.received < jobs && Date.now() < at + patience * 1000) {
    sleep(0.2);
    now = sunk();
  }
  sleep(2); // what comes twice comes now
  settle(before, sunk(), jobs);
}
