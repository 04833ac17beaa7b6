// RATE=200 fires a second for SECONDS=30, from as many jobs that fire every second. LATE_P99 (ms) is how late they may be.
import { sleep } from 'k6';
import { accounted, answered, everySecond, number, registerAll, settle, sunk } from './lib.js';

const rate = number('RATE', 200);
const seconds = number('SECONDS', 30);

export const options = {
  scenarios: { steady: { executor: 'shared-iterations', vus: 1, iterations: 1, maxDuration: '2h' } },
  setupTimeout: '20m',
  thresholds: Object.assign({ fire_lateness: [`p(99)<${number('LATE_P99', 100)}`] }, accounted, answered),
};

export function setup() {
  const from = Math.ceil(Date.now() / 1000) * 1000 + 1000 * number('AHEAD', Math.max(5, Math.ceil(rate / 1000)));
  registerAll(rate, () => everySecond(from, from + seconds * 1000));
  return { from, before: sunk() };
}

export default function ({ from, before }) {
  while (Date.now() < from + seconds * 1000 + 3000) {
    sleep(1);
    sunk();
  }
  settle(before, sunk(), rate * seconds);
}
