------------------------------- MODULE Update -------------------------------
(* What an update changes: which definition an instant belongs to, and who may still fire an entry of an older one.   *)
(* One recurring job with the nominal instants 1..T, a client whose updates may be repeated by another process of the *)
(* API, cut short at any step, or slow for as long as you like. README.md says what each action stands for.           *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Apis, Workers, Executors,
          T,          \* nominal instants of the schedule
          MaxDefs,    \* definitions, the first one included: each try of an update has one of its own
          MaxCrashes, MaxStalls, MaxLosses,
          MaxFires, MaxEvents,
          Bug

VARIABLES
    row,      \* the job's row: its definition, where that begins, and the row's version
    kept,     \* definitions that are kept, with their beginnings: those of the row and of what it superseded
    entries, done,   \* pending entries, as <<definition, instant>>
    hot, inc, rec, stop, fires, finished, events, settled, noted,
    api, work, exec, \* what each process does
    ids,      \* how many definitions were given an id; a greater one never has a smaller id than what it follows
    acked,    \* updates that a client was answered
    token, crashes, stalls, losses,
    begun     \* every invocation: definition, instant, token, and whether an acknowledged update forbade it

vars == <<row, kept, entries, done, hot, inc, rec, stop, fires, finished, events, settled, noted, api, work, exec, ids,
          acked, token, crashes, stalls, losses, begun>>
cold == <<row, kept, entries, done, ids, acked>>
logs == <<fires, finished, events, settled>>
faults == <<crashes, stalls, losses>>

Instants == 1..T
NoRecord == [exists |-> FALSE, holder |-> "", def |-> 0, token |-> 0, lapsed |-> FALSE, ran |-> FALSE, outcome |-> "none"]
NoStop == [version |-> 0, def |-> 0, begin |-> 0]
NoApi == [step |-> "idle", version |-> 0, oldDef |-> 0, oldBegin |-> 0, def |-> 0, begin |-> 0]
NoWork == [step |-> "idle", def |-> 0, at |-> 0, inc |-> 0, ends |-> 0, version |-> 0]
NoExec == [step |-> "idle", def |-> 0, at |-> 0, fire |-> 0, inc |-> 0, token |-> 0, end |-> 0, ends |-> 0, outcome |-> "none"]

Init ==
    /\ row = [def |-> 1, begin |-> 1, version |-> 1] /\ kept = {} /\ entries = {<<1, 1>>} /\ done = {}
    /\ hot = {<<1, 1>>} /\ inc = 1 /\ rec = [t \in Instants |-> NoRecord] /\ stop = NoStop
    /\ fires = <<>> /\ finished = {} /\ events = <<>> /\ settled = 0 /\ noted = {}
    /\ api = [a \in Apis |-> NoApi] /\ work = [w \in Workers |-> NoWork] /\ exec = [e \in Executors |-> NoExec]
    /\ ids = 1 /\ acked = {} /\ token = 0 /\ crashes = 0 /\ stalls = 0 /\ losses = 0 /\ begun = {}

Alive(r) == r.exists /\ r.holder # "" /\ r.outcome = "none" /\ ~r.lapsed
Publish(d, t, kind, tok) == events' = Append(events, [def |-> d, at |-> t, kind |-> kind, token |-> tok])
Least(s) == CHOOSE x \in s : \A y \in s : x <= y

\* Where a definition ended: at the earliest beginning of all that followed it; 0 for nowhere.
EndOf(d) ==
    LET later == {k[2] : k \in {k \in kept \cup {<<row.def, row.begin>>} : k[1] > d}} IN
    CASE later = {} -> 0
      [] Bug = "judged by the last update" /\ row.def > d -> row.begin
      [] OTHER -> Least(later)
WasKept(d) == \E k \in kept : k[1] = d

(* ------------------------------------------------------------------ job-api *)

\* The row is read, and the new definition gets an id and begins somewhere not before the one that it follows.
Begin(a, b) ==
    /\ api[a].step = "idle" /\ ids < MaxDefs /\ b >= row.begin
    /\ ids' = ids + 1
    /\ api' = [api EXCEPT ![a] = [step |-> "keep", version |-> row.version, oldDef |-> row.def, oldBegin |-> row.begin,
                                  def |-> ids + 1, begin |-> b]]
    /\ UNCHANGED <<row, kept, entries, done, hot, inc, rec, stop, logs, noted, work, exec, acked, token, faults, begun>>

Keep(a) ==
    /\ api[a].step = "keep"
    /\ kept' = kept \cup {<<api[a].oldDef, api[a].oldBegin>>}
    /\ api' = [api EXCEPT ![a].step = IF Bug = "row before entry" THEN "row" ELSE "entry"]
    /\ UNCHANGED <<row, entries, done, hot, inc, rec, stop, logs, noted, work, exec, ids, acked, token, faults, begun>>

PutFirst(a) ==
    /\ api[a].step = "entry"
    /\ entries' = entries \cup {<<api[a].def, api[a].begin>>}
    /\ api' = [api EXCEPT ![a].step = IF Bug = "row before entry" THEN "stop" ELSE "row"]
    /\ UNCHANGED <<row, kept, done, hot, inc, rec, stop, logs, noted, work, exec, ids, acked, token, faults, begun>>

\* By compare-and-set: another version begins anew, or gives up.
Replace(a) ==
    /\ api[a].step = "row"
    /\ IF row.version = api[a].version
       THEN /\ row' = [def |-> api[a].def, begin |-> api[a].begin, version |-> row.version + 1]
            /\ api' = [api EXCEPT ![a].step = IF Bug = "row before entry" THEN "entry" ELSE "stop"]
       ELSE row' = row /\ api' = [api EXCEPT ![a] = NoApi]
    /\ UNCHANGED <<kept, entries, done, hot, inc, rec, stop, logs, noted, work, exec, ids, acked, token, faults, begun>>

SetStop(v, d, b) == IF stop.version < v THEN [version |-> v, def |-> d, begin |-> b] ELSE stop

Stop(a) ==
    /\ api[a].step = "stop"
    /\ stop' = CASE Bug = "no stop record" -> stop
                 [] Bug = "stop record without version" -> [version |-> api[a].version + 1, def |-> api[a].def, begin |-> api[a].begin]
                 [] OTHER -> SetStop(api[a].version + 1, api[a].def, api[a].begin)
    /\ acked' = acked \cup {<<api[a].def, api[a].begin>>}
    /\ api' = [api EXCEPT ![a] = NoApi]
    /\ UNCHANGED <<row, kept, entries, done, hot, inc, rec, logs, noted, work, exec, ids, token, faults, begun>>

ApiCrash(a) ==
    /\ crashes < MaxCrashes /\ api[a].step # "idle"
    /\ crashes' = crashes + 1 /\ api' = [api EXCEPT ![a] = NoApi]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, noted, work, exec, token, stalls, losses, begun>>

(* ------------------------------------------------------------------ scheduler-worker *)

Stage(k) ==
    /\ k \in entries \ (done \cup hot) /\ losses = 0 /\ ~\E i \in 1..Len(fires) : fires[i].def = k[1] /\ fires[i].at = k[2]
    /\ hot' = hot \cup {k}
    /\ UNCHANGED <<cold, inc, rec, stop, logs, noted, api, work, exec, token, faults, begun>>

Take(w, k) ==
    /\ work[w].step = "idle" /\ k \in hot
    /\ work' = [work EXCEPT ![w] = [NoWork EXCEPT !.step = "read", !.def = k[1], !.at = k[2], !.inc = inc]]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, noted, api, exec, token, faults, begun>>

\* The row, and the definitions that are kept, tell where the entry's definition ended.
Read(w) ==
    /\ work[w].step = "read"
    /\ LET d == work[w].def  e == EndOf(d) IN
       work' = [work EXCEPT ![w].version = row.version, ![w].ends = e, ![w].step =
           CASE d > row.def -> "await"
             [] d < row.def /\ ~WasKept(d) -> "drop"
             [] d < row.def /\ work[w].at >= e /\ Bug # "fires what is outdated" -> "outdated"
             [] OTHER -> "chain"]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, noted, api, exec, token, faults, begun>>

\* A row that has not come when the grace is over: the writer is fenced, then the entry is dropped.
Fence(w) ==
    /\ work[w].step = "await"
    /\ IF row.def < work[w].def
       THEN /\ row' = IF Bug = "dropped without fence" THEN row ELSE [row EXCEPT !.version = @ + 1]
            /\ work' = [work EXCEPT ![w].step = "drop"]
       ELSE row' = row /\ work' = [work EXCEPT ![w] = NoWork]
    /\ UNCHANGED <<kept, entries, done, ids, acked, hot, inc, rec, stop, logs, noted, api, exec, token, faults, begun>>

\* What was dispatched before leaves its row to settle; the stop record goes first.
Outdated(w) ==
    /\ work[w].step = "outdated"
    /\ stop' = IF row.version >= work[w].version THEN SetStop(row.version, row.def, row.begin) ELSE stop
    /\ work' = [work EXCEPT ![w].step = IF rec[work[w].at].exists THEN "publish" ELSE "drop"]
    /\ UNCHANGED <<cold, hot, inc, rec, logs, noted, api, exec, token, faults, begun>>

Drop(w) ==
    /\ work[w].step = "drop"
    /\ done' = done \cup {<<work[w].def, work[w].at>>}
    /\ work' = [work EXCEPT ![w].step = "remove"]
    /\ UNCHANGED <<row, kept, entries, ids, acked, hot, inc, rec, stop, logs, noted, api, exec, token, faults, begun>>

\* The successor's entry, unless the definition has ended before it.
Chain(w) ==
    /\ work[w].step = "chain"
    /\ LET n == work[w].at + 1 IN
       entries' = IF n <= T /\ (work[w].ends = 0 \/ n < work[w].ends) THEN entries \cup {<<work[w].def, n>>} ELSE entries
    /\ work' = [work EXCEPT ![w].step = "publish"]
    /\ UNCHANGED <<row, kept, done, ids, acked, hot, inc, rec, stop, logs, noted, api, exec, token, faults, begun>>

Dispatch(w) ==
    /\ work[w].step = "publish"
    /\ fires' = Append(fires, [def |-> work[w].def, at |-> work[w].at, inc |-> work[w].inc])
    /\ work' = [work EXCEPT ![w].step = "remove"]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, finished, events, settled, noted, api, exec, token, faults, begun>>

Remove(w) ==
    /\ work[w].step = "remove"
    /\ hot' = hot \ {<<work[w].def, work[w].at>>}
    /\ work' = [work EXCEPT ![w] = NoWork]
    /\ UNCHANGED <<cold, inc, rec, stop, logs, noted, api, exec, token, faults, begun>>

WorkerCrash(w) ==
    /\ crashes < MaxCrashes /\ work[w].step # "idle"
    /\ crashes' = crashes + 1 /\ work' = [work EXCEPT ![w] = NoWork]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, noted, api, exec, token, stalls, losses, begun>>

(* ------------------------------------------------------------------ executor *)

\* An outcome that another definition's entry brought is told as that one's: this row only ends.
Consume(e, i) ==
    /\ exec[e].step = "idle" /\ i \in 1..Len(fires) /\ i \notin finished
    /\ LET f == fires[i]  r == rec[f.at]
           task == [NoExec EXCEPT !.def = f.def, !.at = f.at, !.fire = i, !.inc = f.inc] IN
       IF r.outcome # "none"
       THEN /\ exec' = [exec EXCEPT ![e] = [task EXCEPT !.step = "tell", !.token = r.token,
                                                        !.outcome = IF r.def = f.def THEN r.outcome ELSE "released"]]
            /\ UNCHANGED <<rec, token>>
       ELSE /\ ~Alive(r)
            /\ token' = token + 1
            /\ rec' = [rec EXCEPT ![f.at] = [r EXCEPT !.exists = TRUE, !.holder = e, !.token = token + 1, !.lapsed = FALSE,
                                                      !.def = IF r.ran THEN r.def ELSE f.def]]
            /\ exec' = [exec EXCEPT ![e] = [task EXCEPT !.step = "check", !.token = token + 1]]
    /\ UNCHANGED <<cold, hot, inc, stop, logs, noted, api, work, faults, begun>>

Mine(e) == rec[exec[e].at].token = exec[e].token /\ rec[exec[e].at].outcome = "none" /\ rec[exec[e].at].exists
Forbidden(d, t) == \E k \in acked : k[1] > d /\ t >= k[2]

\* The last check, by the stop record. An older definition than that of the record is judged by where it ended, which the
\* executor is told once; it never changes afterwards.
Check(e) ==
    /\ exec[e].step = "check" /\ exec[e].inc = inc
    /\ LET d == exec[e].def  t == exec[e].at  r == rec[t] IN
       CASE ~Mine(e) -> exec' = [exec EXCEPT ![e] = NoExec] /\ UNCHANGED <<rec, begun>>
         [] Mine(e) /\ stop.version > 0 /\ stop.def < d ->
              exec' = [exec EXCEPT ![e].step = IF Bug = "a greater definition is refused" THEN "release" ELSE "refresh"] /\ UNCHANGED <<rec, begun>>
         [] Mine(e) /\ stop.def > d /\ t < stop.begin /\ exec[e].ends = 0 ->
              exec' = [exec EXCEPT ![e].step = "ends"] /\ UNCHANGED <<rec, begun>>
         [] Mine(e) /\ stop.def > d /\ (t >= stop.begin \/ t >= exec[e].ends) ->
              \* It was invoked by one who did not come back: that counts as fired.
              exec' = [exec EXCEPT ![e].step = IF r.ran /\ r.def = d THEN "store" ELSE "release", ![e].outcome = "lost"]
              /\ UNCHANGED <<rec, begun>>
         [] OTHER ->
              /\ rec' = [rec EXCEPT ![t].ran = TRUE, ![t].def = d]
              /\ begun' = begun \cup {[def |-> d, at |-> t, token |-> exec[e].token, late |-> Forbidden(d, t)]}
              /\ exec' = [exec EXCEPT ![e].step = "store", ![e].outcome = "fired"]
    /\ UNCHANGED <<cold, hot, inc, stop, logs, noted, api, work, token, faults>>

Ends(e) ==
    /\ exec[e].step = "ends"
    /\ exec' = [exec EXCEPT ![e].step = "check", ![e].ends = EndOf(exec[e].def)]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, noted, api, work, token, faults, begun>>

Ask(e) ==
    /\ exec[e].step = "check" /\ exec[e].inc # inc
    /\ exec' = [exec EXCEPT ![e].step = "ask", ![e].inc = inc, ![e].end = Len(events)]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, noted, api, work, token, faults, begun>>

AskRow(e) ==
    /\ exec[e].step = "ask" /\ settled >= exec[e].end
    /\ exec' = [exec EXCEPT ![e].step = IF <<exec[e].def, exec[e].at>> \in done THEN "forget" ELSE "refresh"]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, noted, api, work, token, faults, begun>>

Refresh(e) ==
    /\ exec[e].step = "refresh"
    /\ stop' = SetStop(row.version, row.def, row.begin)
    /\ exec' = [exec EXCEPT ![e].step = "check"]
    /\ UNCHANGED <<cold, hot, inc, rec, logs, noted, api, work, token, faults, begun>>

GiveUp(e) == rec' = IF Mine(e) THEN [rec EXCEPT ![exec[e].at].holder = ""] ELSE rec

\* Refused without a disposition: another definition's entry stands for the instant. "forget": the fire is an old one.
Release(e) ==
    /\ exec[e].step \in {"release", "forget"}
    /\ GiveUp(e)
    /\ IF exec[e].step = "release"
       THEN /\ exec' = [exec EXCEPT ![e].step = "tell", ![e].outcome = "released", ![e].token = 0]
            /\ UNCHANGED finished
       ELSE /\ finished' = finished \cup {exec[e].fire}
            /\ exec' = [exec EXCEPT ![e] = NoExec]
    /\ UNCHANGED <<cold, hot, inc, stop, fires, events, settled, noted, api, work, token, faults, begun>>

Store(e) ==
    /\ exec[e].step = "store"
    /\ LET t == exec[e].at  r == rec[t] IN
       IF r.outcome = "none" /\ (r.token = exec[e].token \/ ~Alive(r))
       THEN /\ rec' = [rec EXCEPT ![t].exists = TRUE, ![t].outcome = exec[e].outcome, ![t].token = exec[e].token,
                                  ![t].def = exec[e].def]
            /\ exec' = [exec EXCEPT ![e].step = "tell"]
       ELSE /\ rec' = rec
            /\ exec' = [exec EXCEPT ![e] =
                   IF r.outcome = "none" THEN NoExec
                   ELSE [exec[e] EXCEPT !.step = "tell", !.token = r.token,
                                        !.outcome = IF r.def = exec[e].def THEN r.outcome ELSE "released"]]
    /\ UNCHANGED <<cold, hot, inc, stop, logs, noted, api, work, token, faults, begun>>

Tell(e) ==
    /\ exec[e].step = "tell"
    /\ Publish(exec[e].def, exec[e].at, exec[e].outcome, exec[e].token)
    /\ finished' = finished \cup {exec[e].fire}
    /\ exec' = [exec EXCEPT ![e] = NoExec]
    /\ UNCHANGED <<cold, hot, inc, rec, stop, fires, settled, noted, api, work, token, faults, begun>>

ExecCrash(e) ==
    /\ crashes < MaxCrashes /\ exec[e].step # "idle"
    /\ crashes' = crashes + 1
    /\ rec' = [t \in Instants |-> IF rec[t].holder = e THEN [rec[t] EXCEPT !.lapsed = TRUE] ELSE rec[t]]
    /\ exec' = [exec EXCEPT ![e] = NoExec]
    /\ UNCHANGED <<cold, hot, inc, stop, logs, noted, api, work, token, stalls, losses, begun>>

Stall(t) ==
    /\ stalls < MaxStalls /\ Alive(rec[t])
    /\ stalls' = stalls + 1
    /\ rec' = [rec EXCEPT ![t].lapsed = TRUE]
    /\ UNCHANGED <<cold, hot, inc, stop, logs, noted, api, work, exec, token, crashes, losses, begun>>

(* ------------------------------------------------------------------ retry-manager, bucket-loader, the hot tier *)

Settle ==
    /\ settled < Len(events)
    /\ settled' = settled + 1
    /\ done' = done \cup {<<events[settled + 1].def, events[settled + 1].at>>}
    /\ UNCHANGED <<row, kept, entries, ids, acked, hot, inc, rec, stop, fires, finished, events, noted, api, work, exec,
                   token, faults, begun>>

Missing(k) == k \in entries \ (done \cup hot) /\ ~Alive(rec[k[2]])

\* Only behind a loss is anything ever missing here; what is put back without need is Minutehand.tla's question.
Note(k) ==
    /\ losses > 0 /\ Missing(k) /\ ~\E n \in noted : n[1] = k
    /\ noted' = noted \cup {<<k, Len(events)>>}
    /\ UNCHANGED <<cold, hot, inc, rec, stop, logs, api, work, exec, token, faults, begun>>

PutBack(n) ==
    /\ n \in noted /\ settled >= n[2]
    /\ noted' = noted \ {n}
    /\ hot' = IF Missing(n[1]) THEN hot \cup {n[1]} ELSE hot
    /\ UNCHANGED <<cold, inc, rec, stop, logs, api, work, exec, token, faults, begun>>

Lose ==
    /\ losses < MaxLosses
    /\ losses' = losses + 1 /\ inc' = inc + 1
    /\ hot' = {} /\ stop' = NoStop /\ noted' = {} /\ rec' = [t \in Instants |-> NoRecord]
    /\ UNCHANGED <<cold, logs, api, work, exec, token, crashes, stalls, begun>>

(* ------------------------------------------------------------------ all of it *)

Progress ==
    \/ \E a \in Apis : Keep(a) \/ PutFirst(a) \/ Replace(a) \/ Stop(a)
    \/ \E k \in entries : Stage(k) \/ Note(k)
    \/ \E n \in noted : PutBack(n)
    \/ \E w \in Workers :
         \/ \E k \in hot : Take(w, k)
         \/ Read(w) \/ Fence(w) \/ Outdated(w) \/ Drop(w) \/ Chain(w) \/ Dispatch(w) \/ Remove(w)
    \/ \E e \in Executors :
         \/ \E i \in 1..MaxFires : Consume(e, i)
         \/ Check(e) \/ Ends(e) \/ Ask(e) \/ AskRow(e) \/ Refresh(e) \/ Release(e) \/ Store(e) \/ Tell(e)
    \/ Settle

Next ==
    \/ Progress \/ Lose
    \/ \E a \in Apis : ApiCrash(a) \/ \E b \in Instants : Begin(a, b)
    \/ \E w \in Workers : WorkerCrash(w)
    \/ \E e \in Executors : ExecCrash(e)
    \/ \E t \in Instants : Stall(t)

Spec == Init /\ [][Next]_vars

\* Every process goes on: what it can do for ever, it does.
Fair ==
    /\ Spec /\ WF_vars(Settle)
    /\ \A a \in Apis : WF_vars(Keep(a) \/ PutFirst(a) \/ Replace(a) \/ Stop(a))
    /\ \A w \in Workers :
         /\ WF_vars(Read(w) \/ Fence(w) \/ Outdated(w) \/ Drop(w) \/ Chain(w) \/ Dispatch(w) \/ Remove(w))
         /\ \A d \in 1..MaxDefs, t \in Instants : SF_vars(Take(w, <<d, t>>))
    /\ \A e \in Executors :
         /\ WF_vars(Check(e) \/ Ends(e) \/ Ask(e) \/ AskRow(e) \/ Refresh(e) \/ Release(e) \/ Store(e) \/ Tell(e))
         /\ \A i \in 1..MaxFires : SF_vars(Consume(e, i))
    /\ \A d \in 1..MaxDefs, t \in Instants :
         /\ WF_vars(Stage(<<d, t>>)) /\ WF_vars(Note(<<d, t>>))
         /\ WF_vars(\E n \in noted : n[1] = <<d, t>> /\ PutBack(n))

Bounded == Len(fires) <= MaxFires /\ Len(events) <= MaxEvents

(* ------------------------------------------------------------------ what is promised *)

\* I2: without a fault an instant is invoked at most once, whichever definition it is of; with one, under another token.
InvokedOnce ==
    \A x, y \in begun :
        x.at = y.at /\ (x.token = y.token \/ (crashes = 0 /\ stalls = 0 /\ losses = 0)) => x = y

\* I4: no instant that an acknowledged update took is fired by an older definition.
NothingOld == \A b \in begun : ~b.late

\* I6: the job's definition has an entry that is not done, until its last instant is; and never more than two.
OneChain ==
    LET mine == {k \in entries \ done : k[1] = row.def} IN
    Cardinality(mine) <= 2 /\ (mine = {} => <<row.def, T>> \in done)

\* I1: where nobody has anything left to do, every entry is done, and every instant was invoked.
NothingStuck == ~ENABLED Progress =>
    /\ entries \subseteq done
    /\ \A t \in Instants : \E b \in begun : b.at = t

\* I1, as liveness: every instant is invoked at some time, and every entry is done in the end.
Delivered ==
    /\ \A t \in Instants : <>(\E b \in begun : b.at = t)
    /\ <>[](entries \subseteq done)
=============================================================================
