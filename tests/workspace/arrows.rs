//! Allowed dependencies between crates, as tables; and the checker that compares a graph with them.
//!
//! Dependencies point one way: contract <- engine, testkit, stores, transports <- facade <-
//! programs and tests. A dependency without a row is forbidden: a new arrow is a decision, and its
//! reason goes into a row. In names, `*` at the end matches anything.

mod made_up;

use crate::graph::{Crate, Dependency, Graph};

/// Folder of each crate, and its name there.
const ROOMS: &[(&str, &str)] = &[
    ("outbox", "outbox"),
    ("outbox/contract", "outbox-contract"),
    ("outbox/derive", "outbox-derive"),
    ("outbox/engine", "outbox-engine"),
    ("outbox/testkit", "outbox-testkit"),
    ("outbox/cli", "outbox-cli"),
    ("outbox/dashboard", "outbox-dashboard"),
    ("stores/*", "outbox-store-*"),
    ("transports/*", "outbox-transport-*"),
    ("examples/contacts", "contacts"),
    ("examples/inbox", "inbox"),
    ("examples/modular_monolith", "modular-monolith"),
    ("examples/orders", "orders"),
    ("examples/other_driver", "other-driver"),
    ("examples/quick_start", "quick-start"),
    ("examples/recipes", "recipes"),
    ("examples/service", "service"),
    ("examples/shared", "examples-shared"),
    ("examples/shop_and_billing", "shop-and-billing"),
    ("examples/tenants", "tenants"),
    ("examples/two_services", "two-services"),
    ("tests", "outbox-tests"),
    ("tests/compile_errors", "outbox-compile-errors"),
    ("tests/mongo_front", "outbox-mongo-front"),
    ("tests/servers", "outbox-servers"),
    ("tests/workspace", "outbox-workspace"),
];

/// An allowed dependency inside the workspace.
struct Arrow {
    from: &'static str,
    to: &'static str,
    when: When,
    because: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// If a feature asks for it that is not on by default.
    ByFeature,
    /// For tests, benchmarks and examples of the crate.
    InTests,
}
use When::{Always, ByFeature, InTests};

const fn arrow(from: &'static str, to: &'static str, when: When, because: &'static str) -> Arrow {
    Arrow { from, to, when, because }
}

#[rustfmt::skip]
const ARROWS: &[Arrow] = &[
    arrow("outbox-derive", "outbox-contract", InTests, "what it generates names the contract; the macro itself does not"),
    arrow("outbox-engine", "outbox-contract", Always, "it works on the traits"),
    arrow("outbox-engine", "outbox-derive", InTests, "its tests and examples have events"),
    arrow("outbox-engine", "outbox-testkit", InTests, "faults and the checker prove it"),
    arrow("outbox-engine", "outbox-store-memory", InTests, "it is simulated on the memory backends"),
    arrow("outbox-engine", "outbox-transport-memory", InTests, "it is simulated on the memory backends"),
    arrow("outbox-testkit", "outbox-contract", Always, "its suites are suites of the traits"),
    arrow("outbox-testkit", "outbox-derive", InTests, "scenarios are about events"),
    arrow("outbox-testkit", "outbox-engine", ByFeature, "the inbox suite runs inboxes; who tries a store alone builds no engine"),
    arrow("outbox-testkit", "outbox-store-memory", InTests, "its suites and doubles need a subject"),
    arrow("outbox-testkit", "outbox-transport-memory", InTests, "its suites and doubles need a subject"),
    arrow("outbox-store-*", "outbox-contract", Always, "all that a store knows"),
    arrow("outbox-store-postgres", "outbox-store-sql", Always, "the common parts of SQL stores"),
    arrow("outbox-store-mysql", "outbox-store-sql", Always, "the common parts of SQL stores"),
    arrow("outbox-store-sqlite", "outbox-store-sql", Always, "the common parts of SQL stores"),
    arrow("outbox-store-*", "outbox-testkit", InTests, "it runs the store suite"),
    arrow("outbox-transport-*", "outbox-contract", Always, "all that a transport knows"),
    arrow("outbox-transport-*", "outbox-testkit", InTests, "it runs the transport suite"),
    arrow("outbox-store-*", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("outbox-transport-*", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("outbox-servers", "outbox-mongo-front", ByFeature, "MongoDB can not be installed from packages; its stand-in is started like a server"),
    arrow("outbox-mongo-front", "outbox-servers", InTests, "its tests need the engine, which is started like a server"),
    arrow("outbox", "outbox-contract", Always, "the facade re-exports it"),
    arrow("outbox", "outbox-derive", Always, "the facade re-exports it"),
    arrow("outbox", "outbox-engine", Always, "the facade re-exports it"),
    arrow("outbox", "outbox-store-memory", Always, "without any feature everything can be tried"),
    arrow("outbox", "outbox-transport-memory", Always, "without any feature everything can be tried"),
    arrow("outbox", "outbox-store-*", ByFeature, "without features the build takes seconds and needs no driver"),
    arrow("outbox", "outbox-transport-*", ByFeature, "without features the build takes seconds and needs no driver"),
    arrow("outbox-dashboard", "outbox", Always, "it stands where users stand"),
    arrow("outbox-dashboard", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("outbox-cli", "outbox", Always, "it stands where users stand"),
    arrow("outbox-cli", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("outbox-cli", "outbox-dashboard", Always, "one of its commands serves it"),
    arrow("contacts", "outbox", Always, "it shows what users write"),
    arrow("contacts", "examples-shared", InTests, "its test runs it as a program"),
    arrow("contacts", "outbox-testkit", InTests, "its test checks what was delivered"),
    arrow("inbox", "outbox", Always, "it shows what users write"),
    arrow("inbox", "examples-shared", InTests, "its test runs it as a program"),
    arrow("modular-monolith", "outbox", Always, "it shows what users write"),
    arrow("modular-monolith", "outbox-testkit", InTests, "it shows how to test a service"),
    arrow("modular-monolith", "examples-shared", InTests, "its test runs it as a program"),
    arrow("modular-monolith", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("orders", "examples-shared", Always, "brokers by URL"),
    arrow("orders", "outbox", Always, "it shows what users write"),
    arrow("orders", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("other-driver", "outbox", Always, "it shows what users write"),
    arrow("other-driver", "examples-shared", InTests, "its test ends programs with it"),
    arrow("other-driver", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("quick-start", "outbox", Always, "it shows what users write"),
    arrow("quick-start", "examples-shared", InTests, "its test runs it as a program"),
    arrow("recipes", "outbox", Always, "it shows what users write"),
    arrow("recipes", "outbox-testkit", InTests, "it shows how to test a handler"),
    arrow("recipes", "examples-shared", InTests, "its test runs it as a program"),
    arrow("service", "outbox", Always, "it shows what users write"),
    arrow("service", "examples-shared", Always, "brokers by URL"),
    arrow("service", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("shop-and-billing", "outbox", Always, "it shows what users write"),
    arrow("shop-and-billing", "examples-shared", InTests, "its test ends programs with it"),
    arrow("shop-and-billing", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("examples-shared", "outbox", ByFeature, "brokers by URL; running a program in a test needs nothing"),
    arrow("tenants", "examples-shared", Always, "brokers by URL"),
    arrow("tenants", "outbox", Always, "it shows what users write"),
    arrow("tenants", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("two-services", "examples-shared", Always, "brokers by URL"),
    arrow("two-services", "outbox", Always, "it shows what users write"),
    arrow("two-services", "outbox-servers", InTests, "its tests run against real servers"),
    arrow("outbox-tests", "outbox*", Always, "they may look at everything"),
    arrow("outbox-compile-errors", "outbox-*", InTests, "its wrong programs name what users name"),
    arrow("outbox-workspace", "outbox-contract", InTests, "it compares the metrics of the code with those of the book"),
    arrow("outbox-workspace", "outbox-servers", InTests, "what needs a tool that is missing skips, by name"),
];

/// Packages outside of the workspace that only some crates may name, and that others must not even
/// reach.
struct Fence {
    packages: &'static [&'static str],
    named_by: &'static [&'static str],
    kept_from: &'static [&'static str],
    because: &'static str,
}

const FENCES: &[Fence] = &[
    Fence {
        packages: &["ractor", "ractor_*", "ractor-*"],
        named_by: &["outbox-engine"],
        kept_from: &["outbox-contract", "outbox-derive", "outbox-store-*", "outbox-transport-*"],
        because: "the actor runtime is the engine's own business",
    },
    Fence {
        packages: &[
            "sqlx",
            "sqlx-*",
            "libsqlite3-sys",
            "rusqlite",
            "tokio-postgres",
            "mysql_async",
            "mongodb",
        ],
        named_by: &[
            "outbox-store-*",
            "outbox-tests",
            "outbox-mongo-front",
            "outbox-cli",
            "contacts",
            "inbox",
            "modular-monolith",
            "orders",
            "other-driver",
            "quick-start",
            "recipes",
            "service",
            "shop-and-billing",
            "tenants",
            "two-services",
        ],
        kept_from: &[
            "outbox-contract",
            "outbox-derive",
            "outbox-engine",
            "outbox-testkit",
            "outbox-store-memory",
            "outbox-transport-*",
        ],
        because: "drivers of databases stay in the stores",
    },
    Fence {
        packages: &["rdkafka", "rdkafka-sys", "lapin", "redis", "fred"],
        named_by: &["outbox-transport-*", "outbox-tests"],
        kept_from: &[
            "outbox-contract",
            "outbox-derive",
            "outbox-engine",
            "outbox-testkit",
            "outbox-store-*",
            "outbox-transport-memory",
        ],
        because: "clients of brokers stay in the transports",
    },
];

/// Features of packages that a crate must not ask for, tests aside.
struct WithoutFeatures {
    of: &'static str,
    package: &'static str,
    features: &'static [&'static str],
    because: &'static str,
}

/// Features of sqlx that name `sqlx-sqlite?`: cargo then chooses an SQLite for every program.
const OF_SQLITE: &[&str] = &[
    "any",
    "chrono",
    "json",
    "macros",
    "migrate",
    "offline",
    "regexp",
    "sqlite",
    "sqlx-toml",
    "time",
    "uuid",
];

const WITHOUT_FEATURES: &[WithoutFeatures] = &[
    WithoutFeatures {
        of: "outbox-contract",
        package: "tokio",
        features: &["full", "rt", "rt-multi-thread", "net", "fs", "process"],
        because: "the contract starts no task and opens nothing",
    },
    WithoutFeatures {
        of: "outbox-store-postgres",
        package: "sqlx",
        features: OF_SQLITE,
        because: "a program with another SQLite (rusqlite, an older sqlx) could not have this store",
    },
    WithoutFeatures {
        of: "outbox-store-mysql",
        package: "sqlx",
        features: OF_SQLITE,
        because: "a program with another SQLite (rusqlite, an older sqlx) could not have this store",
    },
];

/// Returns every violation of the tables in a graph, as text.
fn problems(graph: &Graph) -> Vec<String> {
    let mut problems: Vec<String> = graph.crates.iter().filter_map(no_room).collect();
    for from in &graph.crates {
        for to in &from.dependencies {
            let inside = graph.crates.iter().any(|other| other.name == to.name);
            if inside && !ARROWS.iter().any(|arrow| arrow.allows(from, to)) {
                problems.push(new_arrow(from, to));
            }
            problems.extend(FENCES.iter().filter_map(|fence| fence.named(from, to)));
            problems.extend(WITHOUT_FEATURES.iter().filter_map(|rule| rule.asked(from, to)));
        }
        problems.extend(FENCES.iter().flat_map(|fence| fence.reached(from, graph)));
    }
    problems
}

/// Returns every row of the table of arrows that no dependency of a graph needs.
fn unused(graph: &Graph) -> Vec<String> {
    let is_used = |arrow: &&Arrow| {
        let mut arrows =
            graph.crates.iter().flat_map(|from| from.dependencies.iter().map(move |to| (from, to)));
        arrows.any(|(from, to)| {
            arrow.allows(from, to) && graph.crates.iter().any(|other| other.name == to.name)
        })
    };
    let unused = ARROWS.iter().filter(|arrow| !is_used(arrow));
    unused
        .map(|arrow| format!("no crate needs {} -> {}: remove the row", arrow.from, arrow.words()))
        .collect()
}

fn no_room(subject: &Crate) -> Option<String> {
    let fits =
        |(folder, name): &(&str, &str)| match (part(&subject.folder, folder), part(&subject.name, name)) {
            (Some(in_folder), Some(in_name)) => in_folder == in_name && !in_folder.contains('/'),
            _ => false,
        };
    let Crate { name, folder, .. } = subject;
    (!ROOMS.iter().any(fits)).then(|| format!("{name} in {folder}/ has no place in ROOMS: move or rename it"))
}

fn new_arrow(from: &Crate, to: &Dependency) -> String {
    let how = match (to.dev, to.optional) {
        (true, _) => " in its tests",
        (false, true) => " by a feature",
        (false, false) => "",
    };
    let allowed: Vec<String> =
        ARROWS.iter().filter(|arrow| part(&from.name, arrow.from).is_some()).map(Arrow::words).collect();
    let allowed = if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") };
    format!("{} depends on {}{how}; it may depend on: {allowed}", from.name, to.name)
}

impl Arrow {
    fn allows(&self, from: &Crate, to: &Dependency) -> bool {
        let on_by_default = [&to.name, &format!("dep:{}", to.name)];
        let when = match self.when {
            Always => true,
            ByFeature => {
                to.dev
                    || (to.optional && !on_by_default.iter().any(|name| from.on_by_default.contains(*name)))
            }
            InTests => to.dev,
        };
        when && part(&from.name, self.from).is_some() && part(&to.name, self.to).is_some()
    }

    fn words(&self) -> String {
        let when = match self.when {
            Always => "",
            ByFeature => " by a feature that is off by default",
            InTests => " in its tests",
        };
        format!("{}{when} ({})", self.to, self.because)
    }
}

impl Fence {
    fn named(&self, from: &Crate, to: &Dependency) -> Option<String> {
        (one_of(self.packages, &to.name) && !one_of(self.named_by, &from.name))
            .then(|| format!("{} names {}: {}", from.name, to.name, self.because))
    }

    fn reached(&self, from: &Crate, graph: &Graph) -> Vec<String> {
        if !one_of(self.kept_from, &from.name) {
            return Vec::new();
        }
        let reached = graph.reach(&from.name).into_iter().filter(|package| one_of(self.packages, package));
        reached.map(|package| format!("{} is built from {package}: {}", from.name, self.because)).collect()
    }
}

impl WithoutFeatures {
    fn asked(&self, from: &Crate, to: &Dependency) -> Option<String> {
        if to.dev || from.name != self.of || to.name != self.package {
            return None;
        }
        let asked = to.features.iter().find(|feature| self.features.contains(&feature.as_str()))?;
        Some(format!("{} asks {} for {asked:?}: {}", from.name, to.name, self.because))
    }
}

fn one_of(patterns: &[&str], name: &str) -> bool {
    patterns.iter().any(|pattern| part(name, pattern).is_some())
}

/// Returns the part of a name that `*` matches in a pattern, empty if the pattern has none; None if
/// the name does not match.
fn part<'n>(name: &'n str, pattern: &str) -> Option<&'n str> {
    match pattern.strip_suffix('*') {
        Some(start) => name.strip_prefix(start),
        None => (name == pattern).then_some(""),
    }
}

#[test]
fn no_crate_depends_on_one_that_it_may_not() {
    let graph = Graph::of_this_repository();
    let problems: Vec<String> = problems(&graph).into_iter().chain(unused(&graph)).collect();
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}
