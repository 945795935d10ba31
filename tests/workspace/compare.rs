//! The script `tests/compare`: it builds each commit once, measures the second against the first,
//! and ends with what the measurement says.
//!
//! It runs here with a fake git, and with a fake cargo that builds a fake benchmark.

use std::fs;

use crate::steps::{Ended, Workspace};

const BASH: &str = "#!/usr/bin/env bash\n";

/// A workspace with the commits `old` and `new`, the current one, whose benchmark ends like this.
/// A commit of this name can't be built.
fn commits(measured: &str, broken: &str) -> Workspace {
    let workspace = Workspace::with(&["tests/compare"]);
    let git = format!(
        "{BASH}case \"$*\" in
  rev-parse*old^*) echo 1111111111111111 ;;
  rev-parse*new^* | rev-parse*HEAD^*) echo 2222222222222222 ;;
  rev-parse*broken^*) echo 3333333333333333 ;;
  rev-parse*) exit 1 ;;
  'worktree add'*) mkdir -p \"$5\" && echo \"$6\" >\"$5/commit\" ;;
  'worktree remove'*) rm -r \"$4\" ;;
esac
"
    );
    workspace.program("bin/git", &git);
    let cargo = format!(
        "{BASH}commit=$(cat commit)
echo \"$commit\" >>\"$FOLDER/built\"
[ \"$commit\" = '{broken}' ] && exit 101
printf '#!/usr/bin/env bash\\necho measured \"$0\" \"$@\" | sed \"s|$FOLDER/||g\"\\n{measured}\\n' >\"$FOLDER/program\"
chmod +x \"$FOLDER/program\"
printf '{{\"reason\":\"compiler-artifact\",\"executable\":null}}\\n{{\"executable\":\"%s\",\"fresh\":true}}\\n' \"$FOLDER/program\"
"
    );
    workspace.program("bin/cargo", &cargo);
    workspace
}

fn built(workspace: &Workspace) -> Vec<String> {
    let built = fs::read_to_string(workspace.path().join("built")).unwrap_or_default();
    built.lines().map(str::to_owned).collect()
}

#[track_caller]
fn assert_ends(ended: &Ended, well: bool, words: &str) {
    assert_eq!(ended.well, well, "{}", ended.said);
    assert!(ended.said.contains(words), "{words}: {}", ended.said);
}

#[test]
fn both_commits_are_built_once_and_the_second_is_measured_against_the_first() {
    let workspace = commits("", "");
    let ended = workspace.run_with("tests/compare", &["--minutes", "7", "--pair", "mysql-redis", "old"]);
    let command = "measured target/compare/2222222222222222/relay diff target/compare/1111111111111111/relay \
                   --minutes 7 --pair mysql-redis";
    assert_ends(&ended, true, command);
    assert_eq!(built(&workspace), ["1111111111111111", "2222222222222222"]);
    let ended = workspace.run_with("tests/compare", &["old", "new"]);
    assert_ends(&ended, true, "--minutes 5 --pair postgres-kafka");
    assert_eq!(built(&workspace).len(), 2, "nothing is built again");
}

#[test]
fn a_commit_can_be_compared_with_itself() {
    let workspace = commits("", "");
    let ended = workspace.run_with("tests/compare", &["new", "HEAD"]);
    let program = "target/compare/2222222222222222/relay";
    assert_ends(&ended, true, &format!("measured {program} diff {program}"));
    assert_eq!(built(&workspace).len(), 1);
}

#[test]
fn what_is_worse_or_fails_ends_the_script_with_a_failure() {
    let worse = commits("exit 3", "").run_with("tests/compare", &["old", "new"]);
    assert_ends(&worse, false, "measured");
    let unbuilt = commits("", "1111111111111111").run_with("tests/compare", &["old", "new"]);
    assert_ends(&unbuilt, false, "the benchmark of 1111111111111111 was not built");
    assert!(!unbuilt.said.contains("measured"), "{}", unbuilt.said);
}

#[test]
fn wrong_arguments_are_told_before_anything_is_built() {
    let cases: [(&[&str], &str); 5] = [
        (&[], "takes one commit or two"),
        (&["old", "new", "HEAD"], "takes one commit or two"),
        (&["--fast", "old"], "takes no --fast"),
        (&["old", "--pair"], "--pair needs a value"),
        (&["nowhere"], "there is no commit nowhere"),
    ];
    for (arguments, words) in cases {
        let workspace = commits("", "");
        assert_ends(&workspace.run_with("tests/compare", arguments), false, words);
        assert!(built(&workspace).is_empty(), "{arguments:?}");
    }
}
