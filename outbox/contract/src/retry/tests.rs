//! Tests of the policy, and of its rules against a plain reading of them.

use proptest::prelude::*;

use super::*;

const S: Duration = Duration::from_secs(1);

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

fn rule(class: Option<&str>, topic: Option<&str>) -> RetryRule {
    RetryRule { class: class.map(Into::into), topic: topic.map(Into::into), ..RetryRule::default() }
}

fn with_rules(rules: impl Into<Vec<RetryRule>>) -> RetryPolicy {
    RetryPolicy { rules: rules.into(), ..RetryPolicy::default() }
}

fn decide(policy: &RetryPolicy, on: &str, class: &'static str, attempts: u32) -> Decision {
    policy.decide(&topic(on), &Failure::new(class, "tested"), Tried::Times(attempts), 1.0)
}

fn delay(policy: &RetryPolicy, attempts: u32, draw: f64) -> Duration {
    policy.own_terms().delay(attempts, draw)
}

proptest! {
    #[test]
    fn no_wait_exceeds_its_bound(attempts in 0..u32::MAX, draw in 0.0..1.0_f64, factor in 1.0..100.0_f64) {
        let policy = RetryPolicy { factor, ..RetryPolicy::default() };
        let wait = delay(&policy, attempts, draw);
        prop_assert!(wait <= policy.max_delay);
        prop_assert!(wait <= delay(&policy, attempts, 1.0));
        prop_assert!(delay(&policy, attempts, 1.0) <= delay(&policy, attempts.saturating_add(1), 1.0));
    }

    /// Small names, so that selectors meet: every rule that `problems` takes for covered matches
    /// nothing that no earlier one matches, and each other one matches something first.
    #[test]
    fn a_rule_is_reported_exactly_if_it_never_applies(
        selectors in prop::collection::vec((selector(), selector()), 1..6),
    ) {
        let rules: Vec<RetryRule> =
            selectors.iter().map(|(class, topic)| rule(class.as_deref(), topic.as_deref())).collect();
        let problems = with_rules(rules.clone()).problems();
        for (index, rule) in rules.iter().enumerate() {
            let place = format!("retry.rules[{index}] ");
            let is_reported = problems.iter().any(|problem| problem.starts_with(&place));
            let covered = rules[..index].iter().any(|earlier| {
                names().all(|class| names().all(|on| {
                    !rule.matches(&topic(&on), &class) || earlier.matches(&topic(&on), &class)
                }))
            });
            prop_assert_eq!(is_reported, covered, "{} of {:?}: {:?}", index, rules, problems);
        }
    }

    /// The first rule that matches counts, and nothing behind it.
    #[test]
    fn the_first_rule_that_matches_decides(
        selectors in prop::collection::vec((selector(), selector(), 0..4_u32), 0..6),
        class in name(), on in name(), attempts in 1..5_u32,
    ) {
        let rules: Vec<RetryRule> = selectors
            .iter()
            .map(|(class, topic, most)| {
                RetryRule { max_attempts: Some(*most), ..rule(class.as_deref(), topic.as_deref()) }
            })
            .collect();
        let plainly = |selector: &Option<String>, name: &str| match selector.as_deref() {
            None | Some("*") => true,
            Some(text) => text == name || (text.ends_with('*') && name.starts_with(&text[..text.len() - 1])),
        };
        let first = selectors.iter().find(|(of, to, _)| plainly(of, &class) && plainly(to, &on));
        let most = first.map_or(2, |(_, _, most)| *most);
        let policy = RetryPolicy { max_attempts: 2, rules, ..RetryPolicy::default() };
        let failure = Failure::new(class, "tested");
        let decision = policy.decide(&topic(&on), &failure, Tried::Times(attempts), 1.0);
        prop_assert_eq!(decision == Decision::DeadLetter, attempts >= most, "{:?}", decision);
        let rejected = policy.decide(&topic(&on), &failure, Tried::Rejected, 1.0);
        prop_assert_eq!(rejected, Decision::DeadLetter);
    }
}

/// All names of the small world of the properties: two letters, up to three of them.
fn names() -> impl Iterator<Item = String> {
    let longer =
        |names: Vec<String>| names.iter().flat_map(|name| [format!("{name}a"), format!("{name}b")]).collect();
    let one: Vec<String> = longer(vec![String::new()]);
    let two: Vec<String> = longer(one.clone());
    let three: Vec<String> = longer(two.clone());
    one.into_iter().chain(two).chain(three)
}

fn name() -> impl Strategy<Value = String> {
    "[ab]{1,3}"
}

/// A selector that matches several of these names, or one of less than the longest.
fn selector() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        Just(Some("*".to_owned())),
        "[ab]{1,2}\\*".prop_map(Some),
        "[ab]{1,2}".prop_map(Some)
    ]
}

#[test]
fn waits_of_any_length_are_refused_in_words_and_overflow_nothing() {
    let policy = RetryPolicy { max_delay: Duration::MAX, ..RetryPolicy::default() };
    let problems = policy.problems();
    assert!(problems.len() == 1 && problems[0].starts_with("retry.max_delay"), "{problems:?}");
    let policy = RetryPolicy { first_delay: Duration::MAX, ..policy };
    assert_eq!(policy.problems().len(), 2);
    for factor in [2.0, 0.0, f64::NAN, f64::INFINITY] {
        let policy = RetryPolicy { factor, ..policy.clone() };
        for draw in [0.0, 0.5, 1.0, 2.0, f64::NAN, f64::INFINITY] {
            assert!(delay(&policy, u32::MAX, draw) <= Duration::MAX);
        }
    }
    let most = RetryPolicy { first_delay: MAX_DELAY, max_delay: MAX_DELAY, ..policy };
    assert_eq!((most.problems().len(), delay(&most, 9, 1.0)), (0, MAX_DELAY));
}

/// The values that the documentation states for the defaults.
#[test]
fn the_defaults_give_up_after_nine_minutes_or_nineteen_at_most() {
    let policy = RetryPolicy::default();
    let over = |draw| (1..policy.max_attempts).map(|attempts| delay(&policy, attempts, draw)).sum();
    let (average, longest): (Duration, Duration) = (over(0.5), over(1.0));
    assert_eq!((average.as_secs() / 60, longest.as_secs()), (9, 1_111));
}

#[test]
fn a_rule_overrides_what_it_names_and_leaves_the_rest() {
    let policy = with_rules([
        RetryRule { max_attempts: Some(1), ..rule(Some("declined"), None) },
        RetryRule { max_attempts: Some(RetryPolicy::UNLIMITED), ..rule(Some("no-*"), Some("orders.*")) },
        RetryRule {
            first_delay: Some(S * 10),
            factor: Some(3.0),
            max_delay: Some(S * 40),
            exhausted: Some(Exhausted::Hold),
            ..rule(None, Some("orders.eu"))
        },
    ]);
    assert_eq!(policy.problems(), Vec::<String>::new());
    assert_eq!(decide(&policy, "orders.eu", "declined", 1), Decision::DeadLetter);
    for attempts in [12, 10_000, u32::MAX - 1, u32::MAX] {
        assert_eq!(decide(&policy, "orders.eu", "no-leader", attempts), Decision::Retry(S * 300));
    }
    assert_eq!(decide(&policy, "invoices", "no-leader", 12), Decision::DeadLetter);
    let waits: Vec<Decision> = (1..4).map(|tried| decide(&policy, "orders.eu", "timeout", tried)).collect();
    assert_eq!(waits, [10, 30, 40].map(|seconds| Decision::Retry(S * seconds)));
    assert_eq!(decide(&policy, "orders.eu", "timeout", 12), Decision::Hold);
    assert_eq!(decide(&policy, "orders.us", "timeout", 12), Decision::DeadLetter);
}

#[test]
fn every_action_follows_the_last_attempt_and_a_rejection() {
    for (exhausted, expected) in [
        (Exhausted::DeadLetter, Decision::DeadLetter),
        (Exhausted::Discard, Decision::Discard),
        (Exhausted::Hold, Decision::Hold),
        (Exhausted::PauseTopic, Decision::PauseTopic(S)),
    ] {
        for (most, attempts) in [(0, 1), (1, 1), (3, 3), (3, 9)] {
            let of_class =
                RetryRule { max_attempts: Some(most), exhausted: Some(exhausted), ..rule(Some("x"), None) };
            let policy = with_rules([of_class]);
            assert_eq!(decide(&policy, "t", "x", attempts), expected, "{most} attempts");
            let rejected = policy.decide(&topic("t"), &Failure::new("x", ""), Tried::Rejected, 1.0);
            assert_eq!(rejected, expected);
        }
        let unlimited = RetryRule {
            max_attempts: Some(RetryPolicy::UNLIMITED),
            exhausted: Some(exhausted),
            ..rule(None, None)
        };
        let rejected =
            with_rules([unlimited]).decide(&topic("t"), &Failure::new("x", ""), Tried::Rejected, 1.0);
        assert_eq!(rejected, expected, "no retry helps");
    }
}

#[test]
fn a_policy_in_a_file_has_the_same_names_and_what_it_leaves_out_has_its_default() {
    let text = r#"{"max_attempts":5,"max_delay":"1m","exhausted":"hold","rules":[
        {"class":"kafka.*","topic":"orders.*","max_attempts":"unlimited","first_delay":"2s","factor":1.5},
        {"class":"timeout","max_attempts":0,"exhausted":"discard"},{"topic":"a","exhausted":"pause_topic"}]}"#;
    let policy: RetryPolicy = serde_json::from_str(text).unwrap();
    let expected = RetryPolicy {
        max_attempts: 5,
        max_delay: Duration::from_secs(60),
        exhausted: Exhausted::Hold,
        rules: vec![
            RetryRule {
                max_attempts: Some(RetryPolicy::UNLIMITED),
                first_delay: Some(S * 2),
                factor: Some(1.5),
                ..rule(Some("kafka.*"), Some("orders.*"))
            },
            RetryRule {
                max_attempts: Some(0),
                exhausted: Some(Exhausted::Discard),
                ..rule(Some("timeout"), None)
            },
            RetryRule { exhausted: Some(Exhausted::PauseTopic), ..rule(None, Some("a")) },
        ],
        ..RetryPolicy::default()
    };
    assert_eq!(policy, expected);
    let again = serde_json::to_string(&policy).unwrap();
    assert_eq!(serde_json::from_str::<RetryPolicy>(&again).unwrap(), policy, "{again}");
    let refused = |text: &str| serde_json::from_str::<RetryPolicy>(text).unwrap_err().to_string();
    for (text, known) in [
        (r#"{"attempts": 5}"#, ["`attempts`", "`max_attempts`"]),
        (r#"{"rules": [{"kind": "timeout"}]}"#, ["`kind`", "`class`"]),
        (r#"{"rules": [{"exhausted": "drop"}]}"#, ["`drop`", "`discard`"]),
        (r#"{"rules": [{"max_attempts": "forever"}]}"#, ["forever", "unlimited"]),
        (r#"{"max_attempts": -1}"#, ["number", "unlimited"]),
    ] {
        let error = refused(text);
        assert!(known.iter().all(|known| error.contains(known)), "{text}: {error}");
    }
}

#[test]
fn every_problem_is_reported_at_once() {
    let policy = RetryPolicy {
        max_attempts: 0,
        first_delay: Duration::from_secs(9),
        max_delay: Duration::from_secs(1),
        factor: 0.5,
        ..RetryPolicy::default()
    };
    assert_eq!(policy.problems().len(), 3);
    assert!(RetryPolicy::default().problems().is_empty());

    let policy = with_rules([
        RetryRule { first_delay: Some(Duration::ZERO), ..rule(Some("a"), None) },
        RetryRule { first_delay: Some(S * 301), ..rule(Some("b"), None) },
        RetryRule { factor: Some(f64::NAN), ..rule(Some("c*d"), Some("")) },
        rule(Some("timeout*"), Some("orders.*")),
        RetryRule { max_attempts: Some(1), ..rule(Some("timeout"), Some("orders.eu")) },
        rule(None, None),
        rule(Some("d"), None),
    ]);
    let problems = policy.problems();
    let expected = [
        "retry.rules[0] (class a): first_delay is 0;",
        "retry.rules[1] (class b): max_delay (300s) is shorter than first_delay (301s);",
        "retry.rules[2] (class c*d, topic ): class \"c*d\" matches nothing;",
        "retry.rules[2] (class c*d, topic ): topic \"\" matches nothing;",
        "retry.rules[2] (class c*d, topic ): factor is NaN;",
        "retry.rules[4] (class timeout, topic orders.eu): it never applies, because retry.rules[3] (class timeout*,",
        "retry.rules[6] (class d): it never applies, because retry.rules[5] (everything)",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}");
    }
}
