// Package schedule turns the data of a job.Schedule into its nominal instants: Compile checks a schedule and
// returns a Plan, which answers which instant comes next, which came last, and how many lie between. Describe says
// the same in a sentence.
//
// It promises:
//
//   - It is pure: no clock, no I/O, no state but a cache of time zones. The same schedule and job id give the same
//     instants on every machine, because time zones come from the tzdata embedded here and from nowhere else.
//   - Every result is UTC and a whole number of milliseconds, in the years 1970 to 2199. What is given in finer
//     units (run_at, start_at, end_at) is first cut to milliseconds.
//   - Next is strictly increasing, and Prev is its inverse: if n is Next(t), no nominal instant lies strictly
//     between t and n, and Prev(n) is the last nominal instant before n, at or before t if there is any.
//   - Nothing a user can submit makes it slow. An expression that can never match is refused by Compile, as is
//     one longer than 256 bytes; a search goes month by month where no day matches, and ends with the year 2199.
//   - An Error names the field and says what to do, and never repeats what was submitted.
//   - A Plan is immutable and safe for concurrent use.
//
// start_at (inclusive) and end_at (exclusive) limit nominal instants; a schedule whose limits leave none is
// valid, and its First returns false. max_occurrences is checked and otherwise left to the caller, which counts.
//
// # Cron expressions
//
// Five fields (minute, hour, day of month, month, day of week), six (seconds first) or seven (seconds first, year
// last), separated by spaces or tabs, in any case; or a macro such as @daily. A field is a list of values,
// ranges (a wrapping one too, such as 22-2 or FRI-MON; not in the year) and steps (*/n, a-b/n, and a/n, which runs
// from a to the greatest value: Saturday in the day of week). Sunday is 0 and 7. Day of month also takes ?, L, L-3,
// 15W and LW (the W forms alone, not in a list); day of week also takes ?, 5#3 (third Friday) and 5L (last Friday).
// 15W is the weekday nearest to the 15th within its month, and a month without such a day has none.
//
// H stands for a value that is a hash of the job id, so that jobs with equal expressions spread out; it never moves, and it
// differs from field to field. H is one value of the field (one of 1 to 28 in the day of month, which every month has),
// H(a-b) one of the range, H/n every n-th value from a hashed one among the first n (H/15 in the minute is 0, 15, 30,
// 45 or 1, 16, 31, 46 and so on), H(a-b)/n the same within the range. Each may be an item of a list, and all of
// a field's have the same hash: H(0-29),H(30-59) is every half hour. The year has no H.
//
// If both day fields are set, a day matches when either does. A field that is ? or begins with * counts as not set,
// and then both must match, as in Vixie cron: "0 0 */2 * MON" means the Mondays on odd days.
// H, however it is written, counts as set.
//
// # Where local time jumps
//
// An expression is matched on civil time, a date and a clock time without a zone, and only then is civil time
// resolved to instants. What happens at a jump depends on the hour field.
//
// If the hour field is a list or range of hours, such as 2, 9-17 or H, the expression names fixed local times:
//
//   - Gap, policy next_valid: a civil time that does not exist fires later by the length of the gap, which is to say
//     at the offset from before the gap. New York: 02:30 fires at 03:30. Lord Howe, whose clocks jump by 30 minutes
//     from 02:00: 02:15 fires at 02:45. São Paulo on 4 November 2018, which began at 01:00: 00:00 fires at 01:00.
//     Apia, which had no 30 December 2011: 09:00 of that day fires on the 31st at 09:00, and is one occurrence with
//     the 31st's own.
//   - Gap, policy skip: it does not fire on that day.
//   - Fold, policies first, last and both: a civil time that exists twice fires in the first pass, in the second, or
//     in each.
//
// If the hour field begins with * or contains a step, such as *, */2, 9-17/2 or H/2, the expression names a rhythm, and
// every real instant whose civil time matches fires: in a gap nothing is moved, in a fold both passes fire, and the
// policies do not apply. So "*/15 * * * *" fires every fifteen minutes of real time all year, and "0 */2 * * *" has
// no occurrence at a 02:00 that does not exist. Only the hour field decides this: "*/15 2 * * *" names four fixed
// local times.
//
// Civil times that resolve to one instant are one occurrence ("0 2,3 * * *" fires once at 03:00 after the gap), and
// occurrences are ordered by instant, not by the civil time from which they came.
package schedule
