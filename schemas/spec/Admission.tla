------------------------------ MODULE Admission ------------------------------
(* What waits for room in its target's lane (decision 24): a recurring job whose missed runs are skipped, a lane that has  *)
(* room or has none, as it likes, and workers that attend to an entry at its instant, park it, and publish it when there   *)
(* is room; with crashes, stalls and a lost hot tier. The executor and the settler are a step each: Minutehand.tla has     *)
(* theirs. README.md says what each action stands for.                                                                     *)
EXTENDS Naturals, FiniteSets

CONSTANTS Workers,
          N,          \* occurrences of the schedule
          OneShot,    \* whether it is none, but a one_shot: nothing follows, so nothing is claimed; N is 1 then
          MaxCrashes, MaxStalls, MaxLosses, \* of the owner; of the owner, who goes on later; of the hot tier
          Bug         \* "none", or how the protocol is broken on purpose

VARIABLES
    phase,    \* of each occurrence: 0 ahead, 1 due, 2 its catch-up window has ended
    room,     \* whether its lane has any
    entries, done, \* of the cold store
    decided,  \* what stands on an entry's row: "none", "fire", "skip"
    hot,      \* "no", "there", "parked"
    claim,    \* in the hot tier: "none", "fire", "skip"
    rec,      \* the attempt's record, in the hot tier: "none", "fired", "skipped"
    written,  \* occurrences whose entry was written before its window ended
    owner,    \* of the partition, or "none"
    waits,    \* of each worker: the occurrences that were not late when it noted that the lane has a backlog
    marks,    \* of each worker: the parked entries that it will mark before their windows end
    work,     \* what each worker does with each occurrence
    fires, events, \* what was published, and not taken up yet
    invoked,  \* history: how often each occurrence was
    skipped,  \* history: those that got that disposition
    parked,   \* history: those that were parked, until they are published
    held,     \* history: those whose windows ended while their owner knew that they wait
    missed,   \* history: those whose windows ended while nobody had attended to them, or knew why not
    crashes, stalls, losses

vars == <<phase, room, entries, done, decided, hot, claim, rec, written, owner, waits, marks, work, fires, events, invoked,
          skipped, parked, held, missed, crashes, stalls, losses>>
clock == <<phase, room, held, missed>>
cold == <<entries, done, decided, written>>
logs == <<fires, events>>
history == <<invoked, skipped, parked>>
faults == <<crashes, stalls, losses>>
mind == <<owner, waits, marks>>

Occurrences == 1..N
Owners == Workers \cup {"none"}
Resting == [step |-> "idle", park |-> FALSE, bare |-> FALSE, waits |-> FALSE, decision |-> "none"]

Init ==
    /\ phase = [o \in Occurrences |-> 0] /\ room = TRUE
    /\ entries = {1} /\ done = {} /\ decided = [o \in Occurrences |-> "none"] /\ written = {1}
    /\ hot = [o \in Occurrences |-> IF o = 1 THEN "there" ELSE "no"]
    /\ claim = [o \in Occurrences |-> "none"] /\ rec = [o \in Occurrences |-> "none"]
    /\ owner = CHOOSE w \in Workers : TRUE
    /\ waits = [w \in Owners |-> {}] /\ marks = [w \in Owners |-> {}]
    /\ work = [w \in Workers |-> [o \in Occurrences |-> Resting]]
    /\ fires = {} /\ events = {} /\ invoked = [o \in Occurrences |-> 0]
    /\ skipped = {} /\ parked = {} /\ held = {} /\ missed = {} /\ crashes = 0 /\ stalls = 0 /\ losses = 0

(* ------------------------------------------------------------------ time and the lane *)

Due(o) == phase[o] >= 1
InWork(o) == \E w \in Workers : work[w][o].step # "idle"
Attended(o) == o + 1 \in entries \/ claim[o] # "none" \/ decided[o] # "none" \/ rec[o] # "none" \/ o \in fires \cup events \cup done

\* An entry is parked and marked in less time than was left of its window when its worker began with that (ten seconds).
Tick(o) ==
    /\ phase[o] < 2 /\ (o > 1 => phase[o - 1] > phase[o])
    /\ phase[o] = 1 /\ owner # "none" => o \notin marks[owner] /\ work[owner][o].step # "park"
    /\ phase' = [phase EXCEPT ![o] = @ + 1]
    /\ held' = IF phase[o] = 1 /\ hot[o] # "no" /\ ~InWork(o) /\ owner # "none" /\ o \in waits[owner] /\ o \in written
               THEN held \cup {o} ELSE held
    /\ missed' = IF phase[o] = 1 /\ hot[o] = "there" /\ (owner = "none" \/ o \notin waits[owner]) /\ ~InWork(o) /\ ~Attended(o)
                 THEN missed \cup {o} ELSE missed
    /\ UNCHANGED <<room, cold, hot, claim, rec, mind, work, logs, history, faults>>

Fill == room /\ room' = FALSE /\ UNCHANGED <<phase, held, missed, cold, hot, claim, rec, mind, work, logs, history, faults>>
Drain == ~room /\ room' = TRUE /\ UNCHANGED <<phase, held, missed, cold, hot, claim, rec, mind, work, logs, history, faults>>

(* ------------------------------------------------------------------ scheduler-worker *)

\* A read finds more of the lane than there is room for; and, later, nothing more of it.
Backlog(w) ==
    /\ owner = w /\ ~room /\ waits[w] = {}
    /\ waits' = [waits EXCEPT ![w] = {o \in Occurrences : phase[o] < 2}]
    /\ UNCHANGED <<clock, cold, hot, claim, rec, owner, marks, work, logs, history, faults>>

NoBacklog(w) ==
    /\ waits[w] # {} /\ room /\ \A o \in Occurrences : hot[o] = "no" \/ ~Due(o) \/ work[w][o].step # "idle"
    /\ waits' = [waits EXCEPT ![w] = {}]
    /\ UNCHANGED <<clock, cold, hot, claim, rec, owner, marks, work, logs, history, faults>>

\* What is parked is given when there is room; what has to be attended to, at its instant.
Take(w, o) ==
    /\ owner = w /\ Due(o) /\ work[w][o].step = "idle"
    /\ hot[o] = "there" \/ (hot[o] = "parked" /\ room)
    /\ work' = [work EXCEPT ![w][o] = [Resting EXCEPT
           !.step = "judge", !.park = ~room, !.waits = o \in waits[w] /\ o \in written,
           !.bare = hot[o] = "parked" /\ Bug # "what is parked is judged"]]
    /\ UNCHANGED <<clock, cold, hot, claim, rec, mind, logs, history, faults>>

Go(w, o, step) == work' = [work EXCEPT ![w][o].step = step]
Late(w, o) == phase[o] = 2 /\ (~work[w][o].waits \/ Bug = "what waits is judged")

\* What the hot tier knows of an entry that comes late may have been forgotten: its row is read.
Doubtful(o) == phase[o] = 2 /\ losses > 0

Judge(w, o) ==
    /\ work[w][o].step = "judge"
    /\ CASE work[w][o].bare -> Go(w, o, "publish")
         [] ~work[w][o].bare /\ Late(w, o) -> Go(w, o, "late")
         [] OTHER -> Go(w, o, CASE Doubtful(o) /\ o \in done -> "remove"
                                [] Doubtful(o) /\ o \notin done /\ decided[o] = "skip" /\ Bug # "a decision is forgotten" -> "skip"
                                [] OTHER -> IF OneShot THEN "chain" ELSE "claim")
    /\ UNCHANGED <<clock, cold, hot, claim, rec, mind, logs, history, faults>>

\* On time: the claim, the successor, and then the fire, or the place in the lane.
Claim(w, o) ==
    /\ work[w][o].step = "claim"
    /\ IF owner # w
       THEN claim' = claim /\ work' = [work EXCEPT ![w][o] = Resting]
       ELSE /\ claim' = IF claim[o] = "none" THEN [claim EXCEPT ![o] = "fire"] ELSE claim
            /\ work' = [work EXCEPT ![w][o].decision = claim'[o], ![w][o].step = IF claim'[o] = "fire" THEN "chain" ELSE "decide"]
    /\ UNCHANGED <<clock, cold, hot, rec, mind, logs, history, faults>>

Chained(o) ==
    /\ entries' = IF o < N THEN entries \cup {o + 1} ELSE entries
    /\ written' = IF o < N /\ o + 1 \notin entries /\ phase[o + 1] < 2 THEN written \cup {o + 1} ELSE written
    /\ hot' = IF o < N /\ hot[o + 1] = "no" THEN [hot EXCEPT ![o + 1] = "there"] ELSE hot

Chain(w, o) ==
    /\ work[w][o].step = "chain"
    /\ IF Bug = "parked without a successor" /\ work[w][o].park THEN UNCHANGED <<entries, written, hot>> ELSE Chained(o)
    /\ Go(w, o, CASE ~work[w][o].park -> "publish" [] phase[o] = 2 -> "mark" [] OTHER -> "park")
    /\ UNCHANGED <<clock, done, decided, claim, rec, mind, logs, history, faults>>

\* An entry without a successor that waits for longer than its window is marked on its row: it is to fire all the same.
Mark(w, o) ==
    /\ work[w][o].step = "mark"
    /\ decided' = IF o = N /\ decided[o] = "none" /\ Bug # "no mark" THEN [decided EXCEPT ![o] = "fire"] ELSE decided
    /\ Go(w, o, "park")
    /\ UNCHANGED <<clock, entries, done, written, hot, claim, rec, mind, logs, history, faults>>

Park(w, o) ==
    /\ work[w][o].step = "park"
    /\ IF owner # w \/ hot[o] = "no"
       THEN UNCHANGED <<hot, parked, marks>>
       ELSE /\ hot' = [hot EXCEPT ![o] = "parked"] /\ parked' = parked \cup {o}
            /\ marks' = IF o = N /\ decided[o] = "none" /\ phase[o] < 2 /\ Bug # "no mark"
                        THEN [marks EXCEPT ![w] = @ \cup {o}] ELSE marks
    /\ work' = [work EXCEPT ![w][o] = Resting]
    /\ UNCHANGED <<clock, cold, claim, rec, owner, waits, logs, invoked, skipped, faults>>

MarkDue(w, o) ==
    /\ o \in marks[w]
    /\ marks' = [marks EXCEPT ![w] = @ \ {o}]
    /\ decided' = IF decided[o] = "none" THEN [decided EXCEPT ![o] = "fire"] ELSE decided
    /\ UNCHANGED <<clock, entries, done, written, hot, claim, rec, owner, waits, work, logs, history, faults>>

\* The late rule: what stands on the row, else what tells that it was dispatched, else the claim.
SendLate(w, o) ==
    /\ work[w][o].step = "late"
    /\ CASE o \in done -> Go(w, o, "remove")
         [] o \notin done /\ decided[o] # "none" ->
              work' = [work EXCEPT ![w][o].decision = decided[o], ![w][o].step = IF decided[o] = "fire" THEN "firelate" ELSE "skip"]
         [] o \notin done /\ decided[o] = "none" /\ (o + 1 \in entries \/ rec[o] = "fired") -> Go(w, o, "publish")
         [] OTHER -> Go(w, o, IF OneShot THEN "skip" ELSE "claimlate")
    /\ UNCHANGED <<clock, cold, hot, claim, rec, mind, logs, history, faults>>

ClaimLate(w, o) ==
    /\ work[w][o].step = "claimlate"
    /\ IF owner # w
       THEN claim' = claim /\ work' = [work EXCEPT ![w][o] = Resting]
       ELSE /\ claim' = IF claim[o] = "none" THEN [claim EXCEPT ![o] = "skip"] ELSE claim
            /\ work' = [work EXCEPT ![w][o].decision = claim'[o], ![w][o].step = "decide"]
    /\ UNCHANGED <<clock, cold, hot, rec, mind, logs, history, faults>>

Decide(w, o) ==
    /\ work[w][o].step = "decide"
    /\ decided' = [decided EXCEPT ![o] = work[w][o].decision]
    /\ Go(w, o, IF work[w][o].decision = "fire" THEN "firelate" ELSE "skip")
    /\ UNCHANGED <<clock, entries, done, written, hot, claim, rec, mind, logs, history, faults>>

FireLate(w, o) ==
    /\ work[w][o].step = "firelate"
    /\ Chained(o)
    /\ Go(w, o, "publish")
    /\ UNCHANGED <<clock, done, decided, claim, rec, mind, logs, history, faults>>

\* The record settles between one who skips and one who fired when it was not late yet.
Skip(w, o) ==
    /\ work[w][o].step = "skip"
    /\ IF rec[o] = "fired"
       THEN Go(w, o, "firelate") /\ UNCHANGED <<rec, skipped>>
       ELSE rec' = [rec EXCEPT ![o] = "skipped"] /\ skipped' = skipped \cup {o} /\ Go(w, o, "skipchain")
    /\ UNCHANGED <<clock, cold, hot, claim, mind, logs, invoked, parked, faults>>

SkipChain(w, o) ==
    /\ work[w][o].step = "skipchain"
    /\ Chained(o)
    /\ Go(w, o, "skiptell")
    /\ UNCHANGED <<clock, done, decided, claim, rec, mind, logs, history, faults>>

SkipTell(w, o) ==
    /\ work[w][o].step = "skiptell"
    /\ events' = events \cup {o}
    /\ Go(w, o, "remove")
    /\ UNCHANGED <<clock, cold, hot, claim, rec, mind, fires, history, faults>>

Publish(w, o) ==
    /\ work[w][o].step = "publish"
    /\ fires' = fires \cup {o}
    /\ marks' = [marks EXCEPT ![w] = @ \ {o}]
    /\ parked' = parked \ {o}
    /\ Go(w, o, "remove")
    /\ UNCHANGED <<clock, cold, hot, claim, rec, owner, waits, events, invoked, skipped, faults>>

Remove(w, o) ==
    /\ work[w][o].step = "remove"
    /\ hot' = [hot EXCEPT ![o] = "no"]
    /\ work' = [work EXCEPT ![w][o] = Resting]
    /\ UNCHANGED <<clock, cold, claim, rec, mind, logs, history, faults>>

\* Nobody owns the partition for a while: its owner has died, or stands still and goes on with what it does later.
Leave ==
    /\ owner' = "none"
    /\ waits' = [v \in Owners |-> IF Bug = "a backlog outlives its owner" /\ v = "none" THEN waits[owner] ELSE {}]
    /\ marks' = [v \in Owners |-> {}]

Crash ==
    /\ crashes < MaxCrashes /\ owner # "none"
    /\ crashes' = crashes + 1
    /\ Leave
    /\ work' = [work EXCEPT ![owner] = [o \in Occurrences |-> Resting]]
    /\ UNCHANGED <<clock, cold, hot, claim, rec, logs, history, stalls, losses>>

Stall ==
    /\ stalls < MaxStalls /\ owner # "none"
    /\ stalls' = stalls + 1
    /\ Leave
    /\ UNCHANGED <<clock, cold, hot, claim, rec, work, logs, history, crashes, losses>>

\* An owner that takes it over knows nothing of what waits.
TakeOver(w) ==
    /\ owner = "none"
    /\ owner' = w
    /\ waits' = [v \in Owners |-> IF v = w THEN waits["none"] ELSE {}]
    /\ UNCHANGED <<clock, cold, hot, claim, rec, marks, work, logs, history, faults>>

(* ------------------------------------------------------------------ executor, retry-manager, bucket-loader, the hot tier *)

\* A fire that comes late, or of another incarnation, asks the row.
Execute(o) ==
    /\ o \in fires
    /\ fires' = fires \ {o}
    /\ IF rec[o] = "none" /\ o \in done
       THEN UNCHANGED <<rec, invoked, events>>
       ELSE /\ events' = events \cup {o}
            /\ rec' = IF rec[o] = "none" THEN [rec EXCEPT ![o] = "fired"] ELSE rec
            /\ invoked' = IF rec[o] = "none" THEN [invoked EXCEPT ![o] = @ + 1] ELSE invoked
    /\ UNCHANGED <<clock, cold, hot, claim, mind, work, skipped, parked, faults>>

Settle(o) ==
    /\ o \in events
    /\ events' = events \ {o} /\ done' = done \cup {o}
    /\ UNCHANGED <<clock, entries, decided, written, hot, claim, rec, mind, work, fires, history, faults>>

PutBack(o) ==
    /\ Due(o) /\ o \in entries \ done /\ hot[o] = "no" /\ rec[o] = "none" /\ o \notin fires \cup events
    /\ hot' = [hot EXCEPT ![o] = "there"]
    /\ UNCHANGED <<clock, cold, claim, rec, mind, work, logs, history, faults>>

Lose ==
    /\ losses < MaxLosses
    /\ losses' = losses + 1
    /\ hot' = [o \in Occurrences |-> "no"] /\ claim' = [o \in Occurrences |-> "none"] /\ rec' = [o \in Occurrences |-> "none"]
    /\ UNCHANGED <<clock, cold, mind, work, logs, history, crashes, stalls>>

(* ------------------------------------------------------------------ all of it *)

Step(w, o) ==
    \/ Take(w, o) \/ Judge(w, o) \/ Claim(w, o) \/ Chain(w, o) \/ Mark(w, o) \/ Park(w, o) \/ MarkDue(w, o) \/ SendLate(w, o)
    \/ ClaimLate(w, o) \/ Decide(w, o) \/ FireLate(w, o) \/ Skip(w, o) \/ SkipChain(w, o) \/ SkipTell(w, o) \/ Publish(w, o)
    \/ Remove(w, o)

Progress ==
    \E o \in Occurrences :
        \/ Tick(o) \/ Execute(o) \/ Settle(o) \/ PutBack(o)
        \/ \E w \in Workers : Step(w, o) \/ TakeOver(w)

Next ==
    \/ Progress \/ Fill \/ Drain \/ Lose \/ Crash \/ Stall
    \/ \E w \in Workers : Backlog(w) \/ NoBacklog(w)

Spec == Init /\ [][Next]_vars

Bounded == TRUE

(* ------------------------------------------------------------------ what is promised *)

Faults == crashes + stalls + losses

\* Held back is not missed: what waited for room is not judged by the missed-run policy, and one fault does not change that.
HeldIsNotMissed ==
    /\ Faults = 0 => held \cap skipped = {}
    /\ Faults <= 1 /\ (OneShot => stalls = 0) => parked \cap skipped = {}

\* But what nobody was there for in time is skipped, as the policy says.
MissedIsSkipped == \A o \in missed : invoked[o] = 0

\* I2, and one disposition: what was called is not called again, nor skipped; unless the hot tier forgot it (Minutehand.tla).
InvokedOnce == losses = 0 => \A o \in Occurrences : invoked[o] + (IF o \in skipped THEN 1 ELSE 0) <= 1

\* I6: a schedule goes on while its occurrence waits.
SuccessorFirst == \A o \in Occurrences : o < N /\ (o \in fires \/ hot[o] = "parked" \/ invoked[o] > 0) => o + 1 \in entries

\* I1: where there is room and nobody has anything left to do, every occurrence has come to its end.
NothingStuck == room /\ ~ENABLED Progress => done = Occurrences
===============================================================================
