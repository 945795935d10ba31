//! Which crate may depend on which, as tables; and the checker that holds a graph against them.
//!
//! Dependencies point one way: contract <- engine, testkit, stores, transports <- facade <- programs and tests. What no row allows
//! is forbidden: a new arrow is a decision, and its reason goes into a row. In names, `*` at the end stands for anything.

use crate::graph::{Crate, Dependency, Graph};

/// Where each crate lives, and what it is called there.
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
    ("examples", "outbox-examples"),
    ("tests", "outbox-tests"),
];

/// A dependency inside the workspace that is allowed.
struct Arrow {
    from: &'static str,
    to: &'static str,
    when: When,
    because: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// When a feature asks for it that is not on by default.
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
    arrow("outbox-engine", "outbox-testkit", InTests, "faults and the checker prove it"),
    arrow("outbox-engine", "outbox-store-memory", InTests, "it is simulated on the memory backends"),
    arrow("outbox-engine", "outbox-transport-memory", InTests, "it is simulated on the memory backends"),
    arrow("outbox-testkit", "outbox-contract", Always, "its suites are suites of the traits"),
    arrow("outbox-testkit", "outbox-store-memory", InTests, "its suites and doubles need a subject"),
    arrow("outbox-testkit", "outbox-transport-memory", InTests, "its suites and doubles need a subject"),
    arrow("outbox-store-*", "outbox-contract", Always, "all that a store knows"),
    arrow("outbox-store-*", "outbox-testkit", InTests, "it runs the store suite"),
    arrow("outbox-transport-*", "outbox-contract", Always, "all that a transport knows"),
    arrow("outbox-transport-*", "outbox-testkit", InTests, "it runs the transport suite"),
    arrow("outbox", "outbox-contract", Always, "the facade re-exports it"),
    arrow("outbox", "outbox-derive", Always, "the facade re-exports it"),
    arrow("outbox", "outbox-engine", Always, "the facade re-exports it"),
    arrow("outbox", "outbox-testkit", ByFeature, "users' own tests want it, their programs do not"),
    arrow("outbox", "outbox-store-memory", Always, "without any feature everything can be tried"),
    arrow("outbox", "outbox-transport-memory", Always, "without any feature everything can be tried"),
    arrow("outbox", "outbox-store-*", ByFeature, "without features the build takes seconds and needs no driver"),
    arrow("outbox", "outbox-transport-*", ByFeature, "without features the build takes seconds and needs no driver"),
    arrow("outbox-dashboard", "outbox", Always, "it stands where users stand"),
    arrow("outbox-cli", "outbox", Always, "it stands where users stand"),
    arrow("outbox-cli", "outbox-dashboard", Always, "one of its commands serves it"),
    arrow("outbox-examples", "outbox", Always, "they show what users write"),
    arrow("outbox-examples", "outbox-testkit", Always, "`orders` prints the checker's figures"),
    arrow("outbox-tests", "outbox*", Always, "they may look at everything"),
];

/// Packages outside of the workspace that only some crates may name, and that others must not even reach.
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
        kept_from: &[
            "outbox-contract",
            "outbox-derive",
            "outbox-testkit",
            "outbox-store-*",
            "outbox-transport-*",
        ],
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
        named_by: &["outbox-store-*", "outbox-examples", "outbox-tests"],
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
        named_by: &["outbox-transport-*", "outbox-examples", "outbox-tests"],
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

const WITHOUT_FEATURES: &[WithoutFeatures] = &[WithoutFeatures {
    of: "outbox-contract",
    package: "tokio",
    features: &["full", "rt", "rt-multi-thread", "net", "fs", "process"],
    because: "the contract starts no task and opens nothing",
}];

/// Everything in a graph that the tables do not allow, in words.
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

/// The part of a name that `*` stands for in a pattern, empty where the pattern has none; None when the name does not fit.
fn part<'n>(name: &'n str, pattern: &str) -> Option<&'n str> {
    match pattern.strip_suffix('*') {
        Some(start) => name.strip_prefix(start),
        None => (name == pattern).then_some(""),
    }
}

#[test]
fn no_crate_depends_on_one_that_it_may_not() {
    let problems = problems(&Graph::of_this_repository());
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

/// The checker itself, on made-up graphs: one that is right, and one for each way to break it.
mod made_up {
    use super::*;

    struct House(Graph);

    /// A house in which everything is as it should be.
    fn house() -> House {
        let mut house = House(Graph::default());
        let rooms = [
            ("outbox/contract", "outbox-contract"),
            ("outbox/derive", "outbox-derive"),
            ("outbox/engine", "outbox-engine"),
            ("outbox/testkit", "outbox-testkit"),
            ("stores/memory", "outbox-store-memory"),
            ("stores/sqlite", "outbox-store-sqlite"),
            ("transports/memory", "outbox-transport-memory"),
            ("transports/kafka", "outbox-transport-kafka"),
            ("outbox", "outbox"),
            ("outbox/cli", "outbox-cli"),
            ("outbox/dashboard", "outbox-dashboard"),
            ("examples", "outbox-examples"),
            ("tests", "outbox-tests"),
        ];
        for (folder, name) in rooms {
            house = house.with_crate(folder, name);
        }
        house
            .arrow("outbox-contract", "tokio")
            .dev("outbox-derive", "outbox-contract")
            .arrow("outbox-engine", "outbox-contract")
            .arrow("outbox-engine", "ractor")
            .dev("outbox-engine", "outbox-store-memory")
            .arrow("outbox-testkit", "outbox-contract")
            .arrow("outbox-store-memory", "outbox-contract")
            .dev("outbox-store-memory", "outbox-testkit")
            .arrow("outbox-store-sqlite", "outbox-contract")
            .arrow("outbox-store-sqlite", "sqlx")
            .arrow("outbox-transport-kafka", "rdkafka")
            .arrow("outbox", "outbox-engine")
            .arrow("outbox", "outbox-store-memory")
            .optional("outbox", "outbox-store-sqlite")
            .optional("outbox", "outbox-transport-kafka")
            .arrow("outbox-cli", "outbox-dashboard")
            .arrow("outbox-examples", "outbox")
            .arrow("outbox-tests", "outbox-engine")
    }

    impl House {
        fn with_crate(mut self, folder: &str, name: &str) -> Self {
            self.0.crates.push(Crate {
                name: name.to_owned(),
                folder: folder.to_owned(),
                dependencies: Vec::new(),
                on_by_default: Default::default(),
            });
            self
        }

        fn named(&mut self, name: &str) -> &mut Crate {
            self.0.crates.iter_mut().find(|subject| subject.name == name).expect("a crate of the house")
        }

        fn add(mut self, from: &str, to: &str, dev: bool, optional: bool) -> Self {
            let dependency = Dependency { name: to.to_owned(), dev, optional, features: Vec::new() };
            self.named(from).dependencies.push(dependency);
            if dev { self } else { self.built_from(from, to) }
        }

        fn arrow(self, from: &str, to: &str) -> Self {
            self.add(from, to, false, false)
        }

        fn dev(self, from: &str, to: &str) -> Self {
            self.add(from, to, true, false)
        }

        fn optional(self, from: &str, to: &str) -> Self {
            self.add(from, to, false, true)
        }

        fn built_from(mut self, from: &str, to: &str) -> Self {
            self.0.built_from.entry(from.to_owned()).or_default().insert(to.to_owned());
            self
        }

        #[track_caller]
        fn has(&self, expected: &[&str]) {
            assert_eq!(problems(&self.0), expected);
        }

        #[track_caller]
        fn has_one_that_begins(&self, start: &str) {
            let problems = problems(&self.0);
            assert!(problems.iter().any(|problem| problem.starts_with(start)), "{problems:?}");
        }
    }

    #[test]
    fn a_house_in_order_has_no_problems() {
        house().has(&[]);
    }

    #[test]
    fn every_arrow_that_points_the_wrong_way_is_found() {
        let wrong = [
            ("outbox-contract", "outbox-engine"),
            ("outbox-contract", "outbox-derive"),
            ("outbox-contract", "outbox-store-memory"),
            ("outbox-derive", "outbox-contract"),
            ("outbox-engine", "outbox"),
            ("outbox-engine", "outbox-derive"),
            ("outbox-engine", "outbox-testkit"),
            ("outbox-engine", "outbox-store-memory"),
            ("outbox-engine", "outbox-transport-memory"),
            ("outbox-testkit", "outbox-engine"),
            ("outbox-testkit", "outbox-store-memory"),
            ("outbox-store-sqlite", "outbox-engine"),
            ("outbox-store-sqlite", "outbox-testkit"),
            ("outbox-store-sqlite", "outbox-store-memory"),
            ("outbox-store-memory", "outbox-transport-memory"),
            ("outbox-transport-memory", "outbox-store-memory"),
            ("outbox-transport-memory", "outbox-engine"),
            ("outbox", "outbox-cli"),
            ("outbox", "outbox-examples"),
            ("outbox-dashboard", "outbox-cli"),
            ("outbox-dashboard", "outbox-store-memory"),
            ("outbox-cli", "outbox-engine"),
            ("outbox-cli", "outbox-tests"),
            ("outbox-examples", "outbox-contract"),
            ("outbox-examples", "outbox-engine"),
        ];
        for (from, to) in wrong {
            house()
                .arrow(from, to)
                .has_one_that_begins(&format!("{from} depends on {to}; it may depend on: "));
        }
    }

    #[test]
    fn tests_may_not_name_more_than_the_table_says() {
        let wrong = [
            ("outbox-contract", "outbox-testkit"),
            ("outbox-engine", "outbox-store-sqlite"),
            ("outbox-testkit", "outbox-engine"),
            ("outbox-store-sqlite", "outbox-engine"),
            ("outbox-store-sqlite", "outbox-transport-memory"),
            ("outbox-transport-kafka", "outbox-store-memory"),
        ];
        for (from, to) in wrong {
            house().dev(from, to).has_one_that_begins(&format!("{from} depends on {to} in its tests"));
        }
    }

    #[test]
    fn a_problem_says_what_would_be_allowed() {
        house().arrow("outbox-store-sqlite", "outbox-engine").has(&[
            "outbox-store-sqlite depends on outbox-engine; it may depend on: outbox-contract (all that a store knows), \
             outbox-testkit in its tests (it runs the store suite)",
        ]);
        house()
            .arrow("outbox-contract", "outbox-derive")
            .has(&["outbox-contract depends on outbox-derive; it may depend on: nothing of ours"]);
    }

    #[test]
    fn the_facade_has_backends_with_drivers_only_behind_features_that_are_off() {
        house()
            .arrow("outbox", "outbox-store-sqlite")
            .has_one_that_begins("outbox depends on outbox-store-sqlite");
        for switched in ["dep:outbox-store-sqlite", "outbox-store-sqlite"] {
            let mut house = house();
            house.named("outbox").on_by_default.insert(switched.to_owned());
            house.has_one_that_begins("outbox depends on outbox-store-sqlite by a feature");
        }
    }

    #[test]
    fn only_the_engine_names_ractor_even_in_tests() {
        house()
            .dev("outbox-store-memory", "ractor")
            .has(&["outbox-store-memory names ractor: the actor runtime is the engine's own business"]);
        house()
            .dev("outbox-tests", "ractor_cluster")
            .has_one_that_begins("outbox-tests names ractor_cluster");
    }

    #[test]
    fn a_driver_is_found_at_any_depth() {
        house().built_from("tokio", "pool").built_from("pool", "sqlx-core").has(&[
            "outbox-contract is built from sqlx-core: drivers of databases stay in the stores",
            "outbox-engine is built from sqlx-core: drivers of databases stay in the stores",
            "outbox-testkit is built from sqlx-core: drivers of databases stay in the stores",
            "outbox-store-memory is built from sqlx-core: drivers of databases stay in the stores",
        ]);
        house().arrow("outbox-engine", "lapin").has(&[
            "outbox-engine names lapin: clients of brokers stay in the transports",
            "outbox-engine is built from lapin: clients of brokers stay in the transports",
        ]);
    }

    #[test]
    fn the_contract_asks_for_no_runtime() {
        let mut house = house();
        house.named("outbox-contract").dependencies[0].features = vec!["sync".to_owned(), "rt".to_owned()];
        house.has(&["outbox-contract asks tokio for \"rt\": the contract starts no task and opens nothing"]);
    }

    #[test]
    fn a_crate_is_called_after_its_folder() {
        house()
            .with_crate("stores/redis", "outbox-store-valkey")
            .has(&["outbox-store-valkey in stores/redis/ has no place in ROOMS: move or rename it"]);
        house().with_crate("outbox/core", "outbox-core").has_one_that_begins("outbox-core in outbox/core/");
        house().with_crate("stores/a/b", "outbox-store-a/b").has_one_that_begins("outbox-store-a/b");
    }
}
