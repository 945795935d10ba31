//! The files of `examples/deploy` fit the program, its metrics and the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use outbox_contract::metric::{ALL, Kind, Metric};
use serde_json::Value;

use crate::files::written_files;

const FOLDER: &str = "examples/deploy";
const RULES: &str = "examples/deploy/prometheus/outbox.rules.yaml";
const DASHBOARD: &str = "examples/deploy/grafana/outbox.json";

/// Runbooks that no metric leads to, with the reason.
const WITHOUT_ALERT: &[(&str, &str)] = &[
    ("gaps-and-order", "only a consumer sees them"),
    ("appends-wait", "the service that appends measures its own requests"),
];

/// Labels that a scrape adds.
const OF_A_SCRAPE: &[&str] = &["job", "instance"];

fn read(path: impl AsRef<Path>) -> String {
    let path = crate::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files with this ending, with their texts.
fn files(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let has = |path: &PathBuf| endings.iter().any(|ending| path.display().to_string().ends_with(*ending));
    let found = written_files().into_iter().filter(|path| path.starts_with(FOLDER)).filter(has);
    found.map(|path| (path.clone(), read(path))).collect()
}

/// A rule of the file of alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Alert {
    name: String,
    expression: String,
    /// Its other entries, each on a line.
    entries: BTreeMap<String, String>,
}

impl Alert {
    fn entry(&self, name: &str) -> &str {
        self.entries.get(name).map_or("", |value| value.trim_matches('"'))
    }

    fn severity(&self) -> &str {
        self.entry("labels").trim_matches(['{', '}', ' ']).strip_prefix("severity: ").unwrap_or_default()
    }

    fn runbook(&self) -> &str {
        self.entry("runbook_url").rsplit_once("/runbooks.html#").map_or("", |(_, anchor)| anchor)
    }
}

/// Reads rules that are written as those of the file are: an entry a line, expressions alone on
/// several.
fn alerts(rules: &str) -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    let mut is_expression = false;
    for line in rules.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alerts.push(Alert { name: name.to_owned(), ..Alert::default() });
            continue;
        }
        let Some(alert) = alerts.last_mut() else { continue };
        if let Some(expression) = line.strip_prefix("expr: ") {
            is_expression = expression == "|";
            alert.expression.push_str(expression.trim_start_matches('|'));
            continue;
        }
        is_expression &= !line.starts_with("for: ") && !line.starts_with("labels: ");
        if is_expression {
            alert.expression.push_str(line);
            alert.expression.push(' ');
        } else if let Some((name, value)) = line.split_once(':') {
            alert.entries.insert(name.to_owned(), value.trim().to_owned());
        }
    }
    alerts
}

/// Returns the expressions of the dashboard.
fn queries(dashboard: &Value) -> Vec<String> {
    match dashboard {
        Value::Object(entries) => {
            let own = |name: &str| entries.get(name).and_then(Value::as_str).map(str::to_owned);
            let own = ["expr", "definition"].into_iter().filter_map(own);
            own.chain(entries.values().flat_map(queries)).collect()
        }
        Value::Array(entries) => entries.iter().flat_map(queries).collect(),
        _ => Vec::new(),
    }
}

/// Returns the metrics that a text names, each with the labels that it is selected by.
fn named(text: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |it: char| it.is_ascii_lowercase() || it == '_';
    let starts = text.char_indices().filter(|(at, _)| {
        let begins = ["outbox_", "messaging_client_"].iter().any(|begin| text[*at..].starts_with(begin));
        begins && !text[..*at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_')
    });
    starts
        .map(|(at, _)| {
            let rest = &text[at..];
            let (name, rest) = rest.split_at(rest.find(|it| !is_name(it)).unwrap_or(rest.len()));
            let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let inside = inside.map_or("", |(inside, _)| inside);
            let labels = inside.split(',').filter_map(|one| one.split(['=', '!']).next());
            let labels = labels.map(|label| label.trim().to_owned()).filter(|label| !label.is_empty());
            (name.to_owned(), labels.collect())
        })
        .collect()
}

/// Returns the metric of a series, and its labels.
fn metric(series: &str) -> Option<(&'static Metric, Vec<&'static str>)> {
    let exact = ALL.iter().find(|metric| metric.name == series && metric.kind != Kind::Histogram);
    if let Some(metric) = exact {
        return Some((metric, metric.labels.to_vec()));
    }
    ["_bucket", "_sum", "_count"].iter().find_map(|part| {
        let name = series.strip_suffix(part)?;
        let metric = ALL.iter().find(|metric| metric.name == name && metric.kind == Kind::Histogram)?;
        let bound = (*part == "_bucket").then_some("le");
        Some((metric, metric.labels.iter().copied().chain(bound).collect()))
    })
}

/// Returns what is wrong with the metrics and labels of a text.
fn wrong_metrics(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut known: BTreeSet<&str> = OF_A_SCRAPE.iter().copied().collect();
    for (series, selected) in named(text) {
        let Some((_, labels)) = metric(&series) else {
            wrong.push(format!("no metric is called {series}"));
            continue;
        };
        known.extend(&labels);
        let strange = selected
            .iter()
            .filter(|label| !labels.contains(&label.as_str()) && !OF_A_SCRAPE.contains(&label.as_str()));
        wrong.extend(strange.map(|label| format!("{series} has no label {label}")));
    }
    let grouped = ["by (", "on ("].iter().flat_map(|word| text.split(word).skip(1));
    let grouped = grouped.filter_map(|rest| rest.split_once(')')).flat_map(|(labels, _)| labels.split(','));
    let strange = grouped.map(str::trim).filter(|label| !label.is_empty() && !known.contains(label));
    wrong.extend(strange.map(|label| format!("no metric of {text:?} has a label {label}")));
    wrong
}

#[test]
fn every_metric_of_rules_dashboard_and_autoscalers_exists_with_its_labels() {
    let mut wrong = Vec::new();
    for alert in alerts(&read(RULES)) {
        wrong.extend(wrong_metrics(&alert.expression).into_iter().map(|it| format!("{}: {it}", alert.name)));
    }
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("the dashboard is JSON");
    let queries = queries(&dashboard);
    assert!(queries.len() > 25, "these are not all queries: {queries:#?}");
    wrong.extend(queries.iter().flat_map(|query| wrong_metrics(query)));
    for (path, text) in files(&[".yaml"]) {
        for (series, _) in named(&text).into_iter().filter(|(series, _)| metric(series).is_none()) {
            wrong.push(format!("{}: no metric is called {series}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "\n  {}\n", wrong.join("\n  "));
}

/// Returns the anchors of the sections of a page, as mdBook makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    headings.map(|heading| heading.to_lowercase().replace(' ', "-")).collect()
}

#[test]
fn every_runbook_has_an_alert_and_every_alert_a_runbook() {
    let alerts = alerts(&read(RULES));
    let runbooks = anchors(&read("book/src/runbooks.md"));
    let leads: BTreeSet<String> = alerts.iter().map(|alert| alert.runbook().to_owned()).collect();
    let without: BTreeSet<String> = WITHOUT_ALERT.iter().map(|(anchor, _)| (*anchor).to_owned()).collect();
    assert_eq!(leads.len(), alerts.len(), "two alerts lead to one runbook, or to none: {alerts:#?}");
    assert!(leads.is_disjoint(&without), "{leads:?} has an alert now");
    let all: BTreeSet<String> = leads.union(&without).cloned().collect();
    assert_eq!(all, runbooks);
}

#[test]
fn every_alert_says_what_and_whom_it_concerns_and_is_in_the_book() {
    let alerts = alerts(&read(RULES));
    assert!(alerts.len() >= 10, "{alerts:#?}");
    let page = read("book/src/monitoring.md");
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `Outbox")).collect();
    assert_eq!(listed.len(), alerts.len(), "the book lists other alerts: {listed:#?}");
    for (alert, row) in alerts.iter().zip(listed) {
        let name = &alert.name;
        for entry in ["summary", "description"] {
            assert!(alert.entry(entry).len() > 10, "{name} has no {entry}");
        }
        assert!(["critical", "warning"].contains(&alert.severity()), "{name}: {:?}", alert.severity());
        let begin = format!("| `{name}` | {} |", alert.severity());
        let end = format!("](runbooks.md#{}) |", alert.runbook());
        assert!(row.starts_with(&begin) && row.ends_with(&end), "{begin} … {end} is not {row}");
        // A label that the expression drops is empty in the text.
        for label in [alert.entry("summary"), alert.entry("description")].concat().split("$labels.").skip(1) {
            let label = label.split(|it: char| !it.is_ascii_lowercase()).next().unwrap_or_default();
            let mut groups = alert.expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
            let has = |group: &str| group.split(", ").any(|one| one == label);
            assert!(groups.all(has), "{name} says {label}, which its expression drops");
        }
    }
}

#[test]
fn every_alert_is_seen_to_fire_and_not_to_fire() {
    let tests = read("examples/deploy/prometheus/outbox.rules.test.yaml");
    for Alert { name, .. } in alerts(&read(RULES)) {
        let cases: Vec<&str> = tests
            .split("alertname: ")
            .skip(1)
            .filter(|case| case.split([',', '\n']).next() == Some(name.as_str()))
            .collect();
        let (silent, firing): (Vec<&str>, Vec<&str>) = cases.into_iter().partition(|case| {
            let expected = case.split("exp_alerts:").nth(1).unwrap_or_default();
            expected.trim_start().starts_with("[]")
        });
        assert!(!silent.is_empty() && !firing.is_empty(), "{name}: {silent:?}, {firing:?}");
    }
}

/// Returns promtool, of this machine or of `tests/servers/prepare`.
fn promtool() -> Option<PathBuf> {
    let folder = std::env::var_os("OUTBOX_SERVERS_DIR").filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| crate::root().join("target/servers"), PathBuf::from);
    let prepared = folder.join("bookworm/usr/bin/promtool");
    let is_here = || Command::new("promtool").arg("--version").output().is_ok();
    prepared.exists().then_some(prepared).or_else(|| is_here().then(|| "promtool".into()))
}

/// Runs promtool in the folder of the rules.
#[track_caller]
fn run(promtool: &Path, arguments: &[&str]) {
    let folder = crate::root().join(RULES);
    let mut command = Command::new(promtool);
    command.args(arguments).current_dir(folder.parent().expect("rules are in a folder"));
    let output = command.output().expect("promtool can be run");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn prometheus_accepts_the_rules_and_their_tests_and_every_query() {
    let Some(promtool) = promtool() else {
        return outbox_servers::skip("no promtool: run tests/servers/prepare promtool");
    };
    run(&promtool, &["check", "rules", "outbox.rules.yaml"]);
    run(&promtool, &["test", "rules", "outbox.rules.test.yaml"]);
    run(&promtool, &["check", "config", "prometheus.yaml"]);
    // It has no command for a query alone: each becomes a rule. Rules can be JSON, which is YAML.
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("the dashboard is JSON");
    let scaler = read("examples/deploy/kubernetes/keda.yaml");
    let scaler = scaler.split("query: |").nth(1).and_then(|rest| rest.split("threshold:").next());
    let queries = queries(&dashboard).into_iter().filter(|query| !query.starts_with("label_values("));
    let rules = queries
        .chain([scaler.expect("the autoscaler has a query").to_owned()])
        .enumerate()
        .map(|(number, query)| {
            let query = query.replace("$__rate_interval", "1m");
            serde_json::json!({ "record": format!("query:{number}"), "expr": query })
        })
        .collect::<Vec<Value>>();
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    let rules = serde_json::json!({ "groups": [{ "name": "queries", "rules": rules }] });
    std::fs::write(file.path(), rules.to_string()).expect("a file can be written");
    run(&promtool, &["check", "rules", &file.path().display().to_string()]);
}

/// Returns the words of a list in brackets, as YAML and Dockerfiles have it.
fn list(text: &str) -> Vec<String> {
    let inside = text.trim().trim_start_matches('[').trim_end_matches(']');
    inside.split(", ").map(|word| word.trim_matches('"').to_owned()).collect()
}

/// Returns the calls of the program `outbox`: the arguments of each.
fn calls() -> Vec<(PathBuf, Vec<String>)> {
    let mut calls = Vec::new();
    for (path, text) in files(&[".yaml", "Dockerfile", ".service"]) {
        for line in text.lines().map(str::trim) {
            // Other images of the compose file have commands that begin with an option.
            let listed = ["args: ", "command: ", "CMD "].iter().find_map(|begin| line.strip_prefix(begin));
            if let Some(words) = listed.filter(|list| list.starts_with("[\"") && !list.starts_with("[\"-")) {
                calls.push((path.clone(), list(words)));
            } else if let Some((_, words)) = line.split_once("/bin/outbox ") {
                calls.push((path.clone(), words.split(' ').map(str::to_owned).collect()));
            }
        }
    }
    calls
}

/// Returns the commands, long options and environment variables that the program knows.
fn program() -> (BTreeSet<String>, BTreeSet<String>, BTreeSet<String>) {
    let source = read("outbox/cli/src/args.rs");
    let body = source.split("enum Command {").nth(1).and_then(|rest| rest.split("\n}").next());
    let variants = body.expect("there are commands").lines().filter_map(|line| line.strip_prefix("    "));
    let variants = variants.filter(|line| line.starts_with(|it: char| it.is_ascii_uppercase()));
    let name = |line: &str| line.split([' ', '(', ',']).next().unwrap_or_default().to_lowercase();
    let options = source.split("#[arg(long").skip(1).filter_map(|rest| {
        let (attribute, rest) = rest.split_once(")]\n")?;
        if let Some(named) = attribute.strip_prefix(" = \"") {
            return named.split('"').next().map(str::to_owned);
        }
        let field = rest.trim_start().trim_start_matches("pub(crate) ");
        Some(field.split(':').next()?.replace('_', "-"))
    });
    let variables = source.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next());
    (variants.map(name).collect(), options.collect(), variables.map(str::to_owned).collect())
}

#[test]
fn commands_options_and_variables_are_those_of_the_program() {
    let (commands, options, variables) = program();
    assert!(commands.contains("relay") && options.contains("stop-within"), "{commands:?}, {options:?}");
    let calls = calls();
    let callers: BTreeSet<&PathBuf> = calls.iter().map(|(path, _)| path).collect();
    assert!(callers.len() >= 5, "these are not all calls: {calls:?}");
    for (path, call) in &calls {
        assert!(commands.contains(&call[0]), "{}: no command is called {}", path.display(), call[0]);
        for option in call.iter().filter_map(|word| word.strip_prefix("--")) {
            assert!(options.contains(option), "{}: no option is called --{option}", path.display());
        }
    }
    for (path, text) in files(&[".yaml", "Dockerfile", ".service", ".env"]) {
        let words = text.split(|it: char| !it.is_ascii_uppercase() && it != '_');
        for name in words.filter(|word| word.starts_with("OUTBOX_")) {
            assert!(variables.contains(name), "{}: no variable is called {name}", path.display());
        }
    }
}

#[test]
fn probes_and_scrapes_ask_for_pages_that_exist() {
    let source = read("outbox/cli/src/commands/http.rs");
    let pages: BTreeSet<&str> =
        source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(pages.contains("/metrics"), "{pages:?}");
    let mut asked = BTreeSet::new();
    for (path, text) in files(&[".yaml"]) {
        for rest in ["httpGet: { path: ", "prometheus.io/path: ", "localhost:9464"]
            .iter()
            .flat_map(|before| text.split(before).skip(1))
        {
            let page = rest.split([',', ' ', '\n', '"']).next().unwrap_or_default();
            assert!(page.is_empty() || pages.contains(page), "{}: no page is at {page}", path.display());
            asked.insert(page.to_owned());
        }
    }
    assert!(asked.contains("/live") && asked.contains("/metrics"), "{asked:?}");
    let probes = read("examples/deploy/kubernetes/relay.yaml");
    assert!(!probes.contains("path: /health"), "health is for alerts, never for a probe");
}

/// Seconds in a text after these words.
fn seconds(text: &str, before: &str) -> u64 {
    let number = text.split(before).nth(1).unwrap_or_else(|| panic!("no {before:?}"));
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    number.parse().unwrap_or_else(|_| panic!("no number after {before:?}"))
}

#[test]
fn every_process_manager_gives_a_relay_the_time_to_stop() {
    let needed = seconds(&read("outbox/cli/src/settings.rs"), "stop_within: Duration::from_secs(");
    for (path, before) in [
        ("kubernetes/relay.yaml", "terminationGracePeriodSeconds: "),
        ("systemd/outbox-relay.service", "TimeoutStopSec="),
        ("docker/compose.yaml", "stop_grace_period: "),
    ] {
        let given = seconds(&read(Path::new(FOLDER).join(path)), before);
        assert!(given >= needed + 5, "{path}: {given} s, and a stop takes {needed}");
    }
}

#[test]
fn every_container_in_kubernetes_has_no_rights_and_a_bound_of_memory() {
    for (path, text) in
        files(&[".yaml"]).iter().filter(|(path, _)| path.starts_with("examples/deploy/kubernetes"))
    {
        let count = |words: &str| text.matches(words).count();
        let containers = count("image: outbox");
        for words in [
            "runAsNonRoot: true",
            "readOnlyRootFilesystem: true",
            "allowPrivilegeEscalation: false",
            "capabilities: { drop: [ALL] }",
            "seccompProfile: { type: RuntimeDefault }",
            "automountServiceAccountToken: false",
            "limits: { memory: ",
        ] {
            assert_eq!(count(words), containers, "{}: {words}", path.display());
        }
    }
}

#[test]
fn the_readme_names_every_file() {
    let readme = read("examples/deploy/README.md");
    for (path, _) in files(&[""]) {
        let name = path.strip_prefix(FOLDER).expect("it is in the folder").display().to_string();
        assert!(name == "README.md" || readme.contains(&name), "the README does not name {name}");
    }
}

#[test]
fn metrics_with_wrong_names_or_labels_are_found() {
    assert!(wrong_metrics("max by (job, route) (outbox_pending{route=\"a\", job=~\"b\"}) > 1").is_empty());
    assert!(wrong_metrics("sum by (le) (rate(outbox_latency_seconds_bucket[1m]))").is_empty());
    for wrong in [
        "outbox_pendin",
        "outbox_latency_seconds",
        "outbox_pending_bucket",
        "outbox_pending{topic!=\"a\"}",
        "max by (consumer) (outbox_pending)",
    ] {
        assert_eq!(wrong_metrics(wrong).len(), 1, "{wrong}: {:?}", wrong_metrics(wrong));
    }
}

#[test]
fn rules_are_read_with_expressions_of_one_line_and_of_several() {
    let rules = "# - alert: C\n- alert: A\n  expr: a > 1\n  labels: { severity: warning }\n  annotations:\n    runbook_url: https://x/runbooks.html#y\n- alert: B\n  expr: |\n    a\n      > 2\n  for: 1m\n";
    let alerts = alerts(rules);
    assert_eq!((alerts[0].expression.as_str(), alerts[1].expression.as_str()), ("a > 1", "a > 2 "));
    assert_eq!((alerts[0].severity(), alerts[0].runbook(), alerts.len()), ("warning", "y", 2));
}
