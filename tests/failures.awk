# Reads what `cargo test --no-fail-fast` said, output and errors in one stream. Writes a line for each test that failed: the options that
# choose its test program, a tab, its name. A program of which not every failed test can be named gets a line without a name.

# The last list before a result is that of the names; a test may have printed one like it before.
/^failures:$/ { count = 0; next }
/^    [^ ]/ { names[++count] = substr($0, 5); next }

/^test result: FAILED/ {
  for (i = 1; i < NF; i++) if ($(i + 1) ~ /^failed/) told = $i
  # Documentation tests can have several results in one program.
  if (told == count) for (i = 1; i <= count; i++) failed[++all] = names[i]
  else unnamed = 1
  count = 0
  next
}

/^error: (test|doctest) failed, to rerun pass `.*`$/ {
  programs++
  split($0, parts, "`")
  if (all == 0 || unnamed) print parts[2] "\t"
  else for (i = 1; i <= all; i++) print parts[2] "\t" failed[i]
  all = 0
  unnamed = 0
}

# What failed without saying so above (it could not be started, say) is in this number only.
/^error: [0-9]+ targets? failed:$/ { all_programs = $2 }

END { if (programs == 0 || programs != all_programs) print "another test program\t" }
