---------------------------- MODULE Minutehand ----------------------------
(* The protocol of a recurring job, from the first entry to the mark that it is done: accept, take, chain, dispatch,  *)
(* lease, last check, outcome, settle, put back, close; with crashes, stalls, the loss of the hot tier, and a cancel. *)
(* README.md says which function of the code each action stands for, and what is left out.                            *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Workers, Executors,
          N,          \* occurrences of the schedule, each with a minute bucket of its own
          TwoJobs,    \* TRUE: they are one_shots of two jobs in one bucket instead; the first one may be cancelled
          Cancels,    \* whether a client cancels the job at some time
          MaxCrashes, MaxStalls, MaxLosses, \* of executors; of leases; of the hot tier
          MaxFires, MaxEvents,              \* bounds of the logs (state constraint)
          Bug         \* "none", or how the protocol is broken on purpose

VARIABLES
    row,      \* the job's row: "absent", "active", "cancelled"
    entries,  \* occurrences that have a pending entry in the cold store
    done,     \* those of them that are marked done
    low,      \* low-water mark: buckets below it are closed, their entries are gone
    seen,     \* a bucket that the loader has seen all done, 0 for none
    hot,      \* occurrences in the hot bucket
    inc,      \* incarnation of the hot tier
    rec,      \* leases and outcomes, in the hot tier
    stop,     \* the job's stop record, in the hot tier: "none" or a status
    fires,    \* log of fires
    finished, \* positions of fires that are complete
    events,   \* log of events
    settled,  \* how many of them were settled
    noted,    \* candidates for a put-back: the end of the events when it was noted, plus one; 0 for none
    work,     \* what each worker does with each occurrence
    exec,     \* what each executor does
    token,    \* the last lease's
    cancel,   \* "no", "row" (the row is written), "acknowledged"
    crashes, stalls, losses,
    begun     \* history: every invocation: occurrence, lease, which one of its occurrence it is, the fence that the target is
              \* given, and whether the cancel was acknowledged before it

vars == <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, work, exec, token,
          cancel, crashes, stalls, losses, begun>>

Occurrences == 1..N
NoRecord == [holder |-> "", token |-> 0, lapsed |-> FALSE, ran |-> FALSE, outcome |-> "none"]
Idle == [step |-> "idle", occ |-> 0, fire |-> 0, inc |-> 0, token |-> 0, end |-> 0, outcome |-> "none",
         alone |-> FALSE] \* it knows that the attempt that its record calls running was never called
Resting == [step |-> "idle", inc |-> 0, status |-> "none"]

Init ==
    /\ row = "absent" /\ entries = {} /\ done = {} /\ low = 1 /\ seen = 0
    /\ hot = {} /\ inc = 1 /\ rec = [o \in Occurrences |-> NoRecord] /\ stop = "none"
    /\ fires = <<>> /\ finished = {} /\ events = <<>> /\ settled = 0
    /\ noted = [o \in Occurrences |-> 0]
    /\ work = [w \in Workers |-> [o \in Occurrences |-> Resting]]
    /\ exec = [e \in Executors |-> Idle]
    /\ token = 0 /\ cancel = "no" /\ crashes = 0 /\ stalls = 0 /\ losses = 0 /\ begun = {}

Bucket(o) == IF TwoJobs THEN 1 ELSE o
Last == IF TwoJobs THEN 1 ELSE N \* bucket
Cancelled(s, o) == s = "cancelled" /\ (TwoJobs => o = 1)
Alive(r) == r.holder # "" /\ r.outcome = "none" /\ ~r.lapsed
Open(o) == o \in entries /\ Bucket(o) >= low
Publish(o, kind, t) == events' = Append(events, [occ |-> o, kind |-> kind, token |-> t])

(* ------------------------------------------------------------------ clients *)

\* Step 1: the first entry, then the row, then the answer. Write-through (step 2) may fail, so it is an action of its own.
AcceptEntry ==
    /\ row = "absent" /\ entries = {}
    /\ entries' = IF TwoJobs THEN Occurrences ELSE {1}
    /\ UNCHANGED <<row, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, work, exec, token,
                   cancel, crashes, stalls, losses, begun>>

AcceptRow ==
    /\ row = "absent" /\ 1 \in entries
    /\ row' = "active"
    /\ UNCHANGED <<entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, work, exec,
                   token, cancel, crashes, stalls, losses, begun>>

\* Write-through and staging: an entry that is open comes into its hot bucket ahead of its time.
Stage(o) ==
    /\ Open(o) /\ o \notin done /\ o \notin hot /\ ~\E i \in 1..Len(fires) : fires[i].occ = o
    /\ losses = 0 \* staging adds only what is ahead of the clock; after a loss everything here is past due
    /\ hot' = hot \cup {o}
    /\ UNCHANGED <<row, entries, done, low, seen, inc, rec, stop, fires, finished, events, settled, noted, work, exec,
                   token, cancel, crashes, stalls, losses, begun>>

CancelRow ==
    /\ Cancels /\ row = "active" /\ cancel = "no"
    /\ row' = "cancelled" /\ cancel' = "row"
    /\ UNCHANGED <<entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, work, exec,
                   token, crashes, stalls, losses, begun>>

CancelStop ==
    /\ cancel = "row"
    /\ cancel' = "acknowledged"
    /\ stop' = IF Bug = "no stop record" THEN stop ELSE "cancelled"
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, fires, finished, events, settled, noted, work, exec,
                   token, crashes, stalls, losses, begun>>

(* ------------------------------------------------------------------ scheduler-worker *)
\* Any worker may work on any occurrence at any time: an old owner that stalls and wakes is covered by that.

TakeIncarnation(w, o) ==
    /\ work[w][o].step = "idle" /\ o \in hot
    /\ work' = [work EXCEPT ![w][o] = [step |-> "taken", inc |-> inc, status |-> "none"]]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, exec,
                   token, cancel, crashes, stalls, losses, begun>>

\* An entry without a row is held, and dropped when the row never comes; here the row always comes.
TakeRow(w, o) ==
    /\ work[w][o].step = "taken" /\ row # "absent"
    /\ work' = [work EXCEPT ![w][o].step = IF Cancelled(row, o) THEN "refuse" ELSE "chain"]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, exec,
                   token, cancel, crashes, stalls, losses, begun>>

\* A refusal sets the outcome if nothing is there; else the fire is published bare, and leaves the row to settle.
Refuse(w, o) ==
    /\ work[w][o].step = "refuse"
    /\ IF rec[o].holder = "" /\ rec[o].outcome = "none"
       THEN /\ rec' = [rec EXCEPT ![o].outcome = "cancelled"]
            /\ work' = [work EXCEPT ![w][o].step = "tell"]
       ELSE /\ rec' = rec
            /\ work' = [work EXCEPT ![w][o].step = "publish"]
    \* The fire carries this incarnation; the stop record may be gone with the one before.
    /\ stop' = IF Bug = "refuses without stop record" THEN stop ELSE "cancelled"
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, fires, finished, events, settled, noted, exec, token,
                   cancel, crashes, stalls, losses, begun>>

Tell(w, o) ==
    /\ work[w][o].step = "tell"
    /\ Publish(o, "cancelled", 0)
    /\ work' = [work EXCEPT ![w][o].step = "remove"]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, settled, noted, exec, token,
                   cancel, crashes, stalls, losses, begun>>

\* Step 5: the successor's entry, the fire, the removal, in this order.
Chain(w, o) ==
    /\ work[w][o].step = "chain"
    /\ entries' = IF o < N /\ ~TwoJobs /\ Bug # "no successor" THEN entries \cup {o + 1} ELSE entries
    /\ work' = [work EXCEPT ![w][o].step = "publish"]
    /\ UNCHANGED <<row, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, exec, token,
                   cancel, crashes, stalls, losses, begun>>

Dispatch(w, o) ==
    /\ work[w][o].step = "publish"
    /\ fires' = Append(fires, [occ |-> o, inc |-> IF Bug = "incarnation after row" THEN inc ELSE work[w][o].inc])
    /\ work' = [work EXCEPT ![w][o].step = "remove"]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, finished, events, settled, noted, exec, token,
                   cancel, crashes, stalls, losses, begun>>

Remove(w, o) ==
    /\ work[w][o].step = "remove"
    /\ hot' = hot \ {o}
    /\ work' = [work EXCEPT ![w][o] = Resting]
    /\ UNCHANGED <<row, entries, done, low, seen, inc, rec, stop, fires, finished, events, settled, noted, exec, token,
                   cancel, crashes, stalls, losses, begun>>

WorkerCrash(w) ==
    /\ crashes < MaxCrashes /\ \E o \in Occurrences : work[w][o].step # "idle"
    /\ crashes' = crashes + 1
    /\ work' = [work EXCEPT ![w] = [o \in Occurrences |-> Resting]]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, exec,
                   token, cancel, stalls, losses, begun>>

(* ------------------------------------------------------------------ executor *)

\* Any executor may read any fire that is not complete: a rebalance gives it to another while the first goes on.
Consume(e, i) ==
    /\ exec[e].step = "idle" /\ i \in 1..Len(fires) /\ i \notin finished
    /\ LET o == fires[i].occ  r == rec[o]
           task == [Idle EXCEPT !.occ = o, !.fire = i, !.inc = fires[i].inc] IN
       CASE r.outcome # "none" ->
              /\ exec' = [exec EXCEPT ![e] = [task EXCEPT !.step = "tell", !.outcome = r.outcome, !.token = r.token]]
              /\ UNCHANGED <<rec, token>>
         [] r.outcome = "none" /\ ~Alive(r) ->
              /\ token' = token + 1
              /\ rec' = [rec EXCEPT ![o].holder = e, ![o].token = token + 1, ![o].lapsed = FALSE]
              /\ exec' = [exec EXCEPT ![e] = [task EXCEPT !.step = "check", !.token = token + 1]]
         [] OTHER -> FALSE
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, stop, fires, finished, events, settled, noted, work, cancel,
                   crashes, stalls, losses, begun>>

Calls(o) == {b \in begun : b.occ = o}

\* The hot tier counts what it accepts, in each incarnation anew; what counts here are those of the same occurrence.
Fence(o) == [inc |-> IF Bug = "a fence without the incarnation" THEN 0 ELSE inc,
             n |-> Cardinality({b \in Calls(o) : b.inc = inc}) + 1]

Mine(e) == rec[exec[e].occ].token = exec[e].token /\ rec[exec[e].occ].outcome = "none"

Invocation(o, t) == [occ |-> o, token |-> t, nth |-> Cardinality(Calls(o)) + 1, inc |-> inc, fence |-> Fence(o),
                     late |-> cancel = "acknowledged" /\ (TwoJobs => o = 1)]

\* Lease and last check in one, where nothing stands in the way. Its answer may be lost: then the record says that the attempt
\* runs, and the executor, which has called nobody, goes on step by step.
BeginAtOnce(e, i, told) ==
    /\ exec[e].step = "idle" /\ i \in 1..Len(fires) /\ i \notin finished
    /\ LET o == fires[i].occ
           task == [Idle EXCEPT !.occ = o, !.fire = i, !.inc = inc, !.token = token + 1] IN
       /\ rec[o] = NoRecord /\ fires[i].inc = inc /\ (stop = "none" \/ Bug = "begins beside a stop record")
       /\ token' = token + 1
       /\ rec' = [rec EXCEPT ![o].holder = e, ![o].token = token + 1, ![o].ran = TRUE]
       /\ IF told
          THEN /\ begun' = begun \cup {Invocation(o, token + 1)}
               /\ exec' = [exec EXCEPT ![e] = [task EXCEPT !.step = "store", !.outcome = "fired"]]
          ELSE /\ begun' = begun
               /\ exec' = [exec EXCEPT ![e] = [task EXCEPT !.step = "check", !.alone = Bug # "a lost answer counts as a call"]]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, stop, fires, finished, events, settled, noted, work, cancel,
                   crashes, stalls, losses>>

\* As far as the executor knows, the attempt was invoked before.
Ran(e) == rec[exec[e].occ].ran /\ ~exec[e].alone

\* The last check and the beginning of the invocation are one: an executor that finds time gone between them checks again.
Check(e) ==
    /\ exec[e].step = "check" /\ (exec[e].inc = inc \/ Bug = "trusts any incarnation")
    /\ LET o == exec[e].occ IN
       CASE ~Mine(e) -> \* fenced
              /\ exec' = [exec EXCEPT ![e] = Idle]
              /\ UNCHANGED <<rec, begun>>
         [] Mine(e) /\ Cancelled(stop, o) /\ ~Ran(e) ->
              /\ exec' = [exec EXCEPT ![e].step = "store", ![e].outcome = "cancelled"]
              /\ UNCHANGED <<rec, begun>>
         [] Mine(e) /\ Cancelled(stop, o) /\ Ran(e) -> \* it was invoked by one who did not come back
              /\ exec' = [exec EXCEPT ![e].step = "store", ![e].outcome = "lost"]
              /\ UNCHANGED <<rec, begun>>
         [] OTHER ->
              /\ rec' = [rec EXCEPT ![o].ran = TRUE]
              /\ begun' = begun \cup {Invocation(o, exec[e].token)}
              /\ exec' = [exec EXCEPT ![e].step = "store", ![e].outcome = "fired"]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, stop, fires, finished, events, settled, noted, work, token,
                   cancel, crashes, stalls, losses>>

\* A fire of another incarnation: note the end of the events and the incarnation, wait until they are settled, ask the
\* rows, check again.
Ask(e) ==
    /\ exec[e].step = "check" /\ exec[e].inc # inc /\ Bug # "trusts any incarnation"
    /\ exec' = [exec EXCEPT ![e].step = "ask", ![e].inc = inc, ![e].end = Len(events)]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, work,
                   token, cancel, crashes, stalls, losses, begun>>

AskRow(e) ==
    /\ exec[e].step = "ask" /\ settled >= exec[e].end
    /\ IF exec[e].occ \in done \/ Bucket(exec[e].occ) < low
       THEN exec' = [exec EXCEPT ![e].step = "release"]
       ELSE exec' = [exec EXCEPT ![e].step = "refresh"]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, noted, work,
                   token, cancel, crashes, stalls, losses, begun>>

\* The job row's state goes into the stop record, only over a smaller version.
Refresh(e) ==
    /\ exec[e].step = "refresh"
    /\ stop' = IF stop = "cancelled" THEN stop ELSE row
    /\ exec' = [exec EXCEPT ![e].step = "check"]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, fires, finished, events, settled, noted, work, token,
                   cancel, crashes, stalls, losses, begun>>

Release(e) ==
    /\ exec[e].step = "release"
    /\ rec' = IF Mine(e) THEN [rec EXCEPT ![exec[e].occ] = [NoRecord EXCEPT !.ran = Ran(e)]] ELSE rec
    /\ finished' = finished \cup {exec[e].fire}
    /\ exec' = [exec EXCEPT ![e] = Idle]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, stop, fires, events, settled, noted, work, token, cancel,
                   crashes, stalls, losses, begun>>

\* An outcome is stored if the token is still the holder's or no living lease stands there. Else the other's is followed.
Store(e) ==
    /\ exec[e].step = "store"
    /\ LET o == exec[e].occ  r == rec[o] IN
       IF (r.outcome = "none" /\ (r.token = exec[e].token \/ ~Alive(r))) \/ Bug = "no token compared"
       THEN /\ rec' = [rec EXCEPT ![o].outcome = exec[e].outcome, ![o].token = exec[e].token]
            /\ exec' = [exec EXCEPT ![e].step = "tell"]
       ELSE /\ rec' = rec
            /\ IF Bug = "publishes what was not stored"
               THEN exec' = [exec EXCEPT ![e].step = "tell"]
               ELSE IF r.outcome # "none"
                    THEN exec' = [exec EXCEPT ![e].step = "tell", ![e].outcome = r.outcome, ![e].token = r.token]
                    ELSE exec' = [exec EXCEPT ![e] = Idle] \* it is waited for: the fire stays uncommitted
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, stop, fires, finished, events, settled, noted, work, token,
                   cancel, crashes, stalls, losses, begun>>

ExecTell(e) ==
    /\ exec[e].step = "tell"
    /\ Publish(exec[e].occ, exec[e].outcome, exec[e].token)
    /\ exec' = [exec EXCEPT ![e].step = "commit"]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, settled, noted, work, token,
                   cancel, crashes, stalls, losses, begun>>

Commit(e) ==
    /\ exec[e].step = "commit"
    /\ finished' = finished \cup {exec[e].fire}
    /\ exec' = [exec EXCEPT ![e] = Idle]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, events, settled, noted, work, token, cancel,
                   crashes, stalls, losses, begun>>

\* A crash: the lease lapses, for nobody renews it.
ExecCrash(e) ==
    /\ crashes < MaxCrashes /\ exec[e].step # "idle"
    /\ crashes' = crashes + 1
    /\ rec' = [o \in Occurrences |-> IF rec[o].holder = e THEN [rec[o] EXCEPT !.lapsed = TRUE] ELSE rec[o]]
    /\ exec' = [exec EXCEPT ![e] = Idle]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, stop, fires, finished, events, settled, noted, work, token,
                   cancel, stalls, losses, begun>>

\* A stall: the lease lapses, and the holder goes on when it wakes.
Stall(o) ==
    /\ stalls < MaxStalls /\ Alive(rec[o])
    /\ stalls' = stalls + 1
    /\ rec' = [rec EXCEPT ![o].lapsed = TRUE]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, stop, fires, finished, events, settled, noted, work, exec,
                   token, cancel, crashes, losses, begun>>

(* ------------------------------------------------------------------ retry-manager *)

Settle ==
    /\ settled < Len(events)
    /\ settled' = settled + 1
    /\ done' = IF Bucket(events[settled + 1].occ) >= low THEN done \cup {events[settled + 1].occ} ELSE done
    /\ UNCHANGED <<row, entries, low, seen, hot, inc, rec, stop, fires, finished, events, noted, work, exec, token,
                   cancel, crashes, stalls, losses, begun>>

(* ------------------------------------------------------------------ bucket-loader *)

Missing(o) == Open(o) /\ o \notin done /\ o \notin hot /\ ~Alive(rec[o])

Note(o) ==
    /\ Bug # "no put-back"
    /\ Missing(o) /\ noted[o] = 0
    /\ noted' = [noted EXCEPT ![o] = Len(events) + 1]
    /\ UNCHANGED <<row, entries, done, low, seen, hot, inc, rec, stop, fires, finished, events, settled, work, exec,
                   token, cancel, crashes, stalls, losses, begun>>

\* The executors are waited for too, but only for a time; here that is no condition.
PutBack(o) ==
    /\ noted[o] > 0 /\ settled >= noted[o] - 1
    /\ noted' = [noted EXCEPT ![o] = 0]
    /\ hot' = IF Missing(o) THEN hot \cup {o} ELSE hot
    /\ UNCHANGED <<row, entries, done, low, seen, inc, rec, stop, fires, finished, events, settled, work, exec, token,
                   cancel, crashes, stalls, losses, begun>>

\* Buckets close in order, when everything in them is done, which is read once more right before.
In(b) == {o \in entries : Bucket(o) = b}

SeeDone(b) ==
    /\ seen = 0 /\ b >= low /\ In(b) \subseteq done
    /\ (Bug = "closes out of order" \/ b = low)
    /\ row # "absent" \* a bucket closes minutes after it; the API writes into the current minute
    /\ (In(b) # {} \/ \A p \in 1..(b - 1) : p \in done)
    /\ seen' = b
    /\ UNCHANGED <<row, entries, done, low, hot, inc, rec, stop, fires, finished, events, settled, noted, work, exec,
                   token, cancel, crashes, stalls, losses, begun>>

Close ==
    /\ seen > 0
    /\ seen' = 0
    /\ low' = IF In(seen) \subseteq done \/ Bug = "closes what one saw" THEN seen + 1 ELSE low
    /\ UNCHANGED <<row, entries, done, hot, inc, rec, stop, fires, finished, events, settled, noted, work, exec, token,
                   cancel, crashes, stalls, losses, begun>>

\* The hot tier forgets everything.
Lose ==
    /\ losses < MaxLosses
    /\ losses' = losses + 1
    /\ inc' = inc + 1
    /\ hot' = {} /\ stop' = "none" /\ noted' = [o \in Occurrences |-> 0]
    /\ rec' = [o \in Occurrences |-> NoRecord]
    /\ UNCHANGED <<row, entries, done, low, seen, fires, finished, events, settled, work, exec, token, cancel, crashes,
                   stalls, begun>>

(* ------------------------------------------------------------------ all of it *)

Progress ==
    \/ AcceptEntry \/ AcceptRow \/ CancelStop \/ Settle
    \/ \E o \in Occurrences : Note(o) \/ PutBack(o)
    \/ \E w \in Workers, o \in Occurrences :
         TakeIncarnation(w, o) \/ TakeRow(w, o) \/ Refuse(w, o) \/ Tell(w, o) \/ Chain(w, o) \/ Dispatch(w, o) \/ Remove(w, o)
    \/ \E e \in Executors :
         \/ \E i \in 1..MaxFires : Consume(e, i) \/ BeginAtOnce(e, i, TRUE)
         \/ Check(e) \/ Ask(e) \/ AskRow(e) \/ Refresh(e) \/ Release(e) \/ Store(e) \/ ExecTell(e) \/ Commit(e)

Next ==
    \/ Progress \/ CancelRow \/ Close \/ Lose
    \/ \E o \in Occurrences : Stage(o) \/ Stall(o)
    \/ \E b \in 1..Last : SeeDone(b)
    \/ \E w \in Workers : WorkerCrash(w)
    \/ \E e \in Executors : ExecCrash(e) \/ \E i \in 1..MaxFires : BeginAtOnce(e, i, FALSE)

Spec == Init /\ [][Next]_vars

Bounded == Len(fires) <= MaxFires /\ Len(events) <= MaxEvents

(* ------------------------------------------------------------------ what is promised *)

\* I2: without a crash, a stall or a loss an occurrence is invoked at most once; with them, each time under another token.
InvokedOnce ==
    \A o \in Occurrences :
        /\ crashes = 0 /\ stalls = 0 /\ losses = 0 => Cardinality(Calls(o)) <= 1
        /\ \A a, b \in Calls(o) : a.token = b.token => a = b

\* A target that keeps the greatest fence it was given refuses an invocation that began earlier, and no other.
FencesGrow ==
    \A o \in Occurrences : \A a, b \in Calls(o) :
        a.nth < b.nth => a.fence.inc < b.fence.inc \/ (a.fence.inc = b.fence.inc /\ a.fence.n < b.fence.n)

\* I4: nothing begins after a cancel was acknowledged.
NothingAfterCancel == \A b \in begun : ~b.late

\* I1: what has no disposition is never out of everyone's sight: its entry is open, so that the sweeps find it.
NothingLost ==
    \A o \in Occurrences :
        /\ o \in entries /\ Bucket(o) < low => o \in done
        /\ o \in done => \E i \in 1..Len(events) : events[i].occ = o

\* I3: while the job is active, an occurrence that was fired has its successor on record.
SuccessorFirst ==
    \A i \in 1..Len(fires) : fires[i].occ < N /\ ~TwoJobs /\ row = "active" => fires[i].occ + 1 \in entries

\* I1: what is told as fired was invoked, unless an executor was lost before it could tell whether it was.
NothingMadeUp ==
    crashes = 0 /\ stalls = 0 => \A i \in 1..Len(events) : events[i].kind \in {"fired", "lost"} => Calls(events[i].occ) # {}

\* I7: of one attempt, every event tells the same outcome, unless the hot tier was lost.
OneOutcome ==
    losses = 0 => \A i, j \in 1..Len(events) :
        events[i].occ = events[j].occ => events[i].kind = events[j].kind /\ events[i].token = events[j].token

\* I1 again: where nobody has anything left to do, every entry is done. (Faults are no progress, so nothing waits for one.)
NothingStuck == ~ENABLED Progress => \A o \in entries : o \in done
===========================================================================
