# Named steps with their times, for tests/run and .ci/run. Sourced, not run.
#
# Every step runs in a process group of its own, so that an interrupt ends all of it: nothing goes on in the background.

steps_done=()     # lines of the summary
steps_skipped=()  # what was not done, each with its reason
steps_unsteady=() # tests that failed once and passed alone
steps_servers=()  # databases and brokers that tests had
steps_failed=0
step_running=""
step_group=""
beside_name="" beside_group="" beside_began=0 beside_log=""

# step NAME COMMAND...: runs a command as a step. A failing step is noted and does not end the script. Of a function that is a step every
# command must say what its failure means (`|| return`): errexit does nothing there.
step() {
  local name=$1 began=$SECONDS code=0
  shift
  printf '\n==> %s\n' "$name"
  step_running=$name
  set -m
  ("$@") </dev/null &
  step_group=$!
  set +m
  wait "$step_group" || code=$?
  step_group="" step_running=""
  ended "$name" "$code" $((SECONDS - began))
  return "$code"
}

# ended NAME CODE SECONDS: notes how a step ended.
ended() {
  local took
  took=$(duration "$3")
  if [ "$2" -eq 0 ]; then
    printf '    ok: %s (%s)\n' "$1" "$took"
    steps_done+=("$(printf 'ok      %-34s %10s' "$1" "$took")")
  else
    printf '    FAILED: %s (%s, exit code %s)\n' "$1" "$took" "$2"
    steps_done+=("$(printf 'FAILED  %-34s %10s' "$1" "$took")")
    steps_failed=$((steps_failed + 1))
  fi
}

# room FOLDER GB WHAT VARIABLE: on a full disk tests fail one after the other, each with words of its own. VARIABLE moves the folder.
room() {
  local free
  mkdir -p "$1" || return 1
  free=$(($(df -Pk "$1" | awk 'NR == 2 { print $4 }') / 1000000))
  [ "$free" -ge "$2" ] && return 0
  echo "the disk of $1 has $free GB left, and $3 needs $2: free some space, or set $4 to a folder on another disk" >&2
  return 1
}

# memory: free MB, of the machine or of the control group (such as a container) that this runs in, whichever has less. $OUTBOX_SYSTEM is for a test.
memory() {
  local system=${OUTBOX_SYSTEM-} groups file limit
  groups=$system/sys/fs/cgroup
  {
    awk '/^MemAvailable:/ { print int($2 / 1000) }' "$system/proc/meminfo" || :
    # Both versions, by the path that the process has, and by the one that a container shows as its root.
    awk -F : -v groups="$groups" '$1 == 0 { print groups $3 "/memory.max" } $2 == "memory" { print groups "/memory" $3 "/memory.limit_in_bytes" }
      END { print groups "/memory.max"; print groups "/memory/memory.limit_in_bytes" }' "$system/proc/self/cgroup" |
      while read -r file; do
        if read -r limit <"$file" && [ "$limit" != max ]; then echo $((limit / 1000000)); fi
      done || :
  } 2>/dev/null | sort -n | awk 'NR == 1 { least = $1 } END { print NR ? least : 1000000 }'
}

# beside NAME LOG COMMAND...: starts a step that goes on beside the next ones; what it prints is kept in the log until `joined`.
beside() {
  beside_name=$1 beside_log=$2 beside_began=$SECONDS
  shift 2
  printf '\n==> %s, beside the next steps\n' "$beside_name"
  set -m
  ("$@" && code=0 || code=$?; echo $SECONDS >"$beside_log.ended"; exit "$code") >"$beside_log" 2>&1 </dev/null &
  beside_group=$!
  set +m
}

# joined: waits for the step that was started beside others, and prints what it said.
joined() {
  local code=0
  printf '\n==> %s\n' "$beside_name"
  wait "$beside_group" || code=$?
  beside_group=""
  cat "$beside_log"
  ended "$beside_name" "$code" $(($(cat "$beside_log.ended" 2>/dev/null || echo $SECONDS) - beside_began))
  return "$code"
}

# skipped WHAT WHY: notes what this run does not do.
skipped() {
  printf '\n==> skipped: %s (%s)\n' "$1" "$2"
  steps_skipped+=("$1 ($2)")
}

# summary: says how every step ended; returns 1 if one failed.
summary() {
  printf '\nSummary, after %s\n' "$(duration "$SECONDS")"
  [ ${#steps_done[@]} -eq 0 ] || printf '  %s\n' "${steps_done[@]}"
  [ ${#steps_servers[@]} -eq 0 ] || printf '  server: %s\n' "${steps_servers[@]}"
  if [ ${#steps_skipped[@]} -eq 0 ]; then
    printf '  nothing was skipped\n'
  else
    printf '  skipped: %s\n' "${steps_skipped[@]}"
  fi
  if [ ${#steps_unsteady[@]} -gt 0 ]; then
    printf '  unsteady: %s (failed once, passed alone)\n' "${steps_unsteady[@]}"
    printf '  An unsteady test is a bug: please mend it, or report it.\n'
  fi
  [ "$steps_failed" -eq 0 ]
}

duration() {
  if [ "$1" -lt 60 ]; then printf '%d s' "$1"; else printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); fi
}

# ended_group GROUP: returns when nothing of a process group is left; what has not ended after ten seconds is killed.
ended_group() {
  local try
  for try in {1..100}; do
    kill -0 -- "-$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL -- "-$1" 2>/dev/null || :
}

# Ends the running step with everything that it started.
interrupted() {
  trap '' INT TERM
  local group
  for group in $step_group $beside_group; do
    kill -TERM -- "-$group" 2>/dev/null || :
    wait "$group" 2>/dev/null || :
    ended_group "$group"
  done
  printf '\nInterrupted%s. Nothing is left running; run it again, and it takes up what is built.\n' \
    "${step_running:+ in: $step_running}" >&2
  exit 130
}
trap interrupted INT TERM HUP
