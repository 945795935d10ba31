//! Unserved routes: routes with messages and without a running relay.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::clean;
use crate::name::Route;

/// A route with waiting messages and no live relay: its name was changed or mistyped, or its relay
/// was never started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unserved {
    /// The route. For a name that is not a valid route, the nearest valid one: control characters
    /// are replaced (U+FFFD), and the excess length is truncated.
    pub route: Route,
    /// Age of the oldest examined message, or the time since a scheduled one became due, by the
    /// database's clock.
    pub oldest_age: Duration,
    /// True if a relay could serve it. Otherwise a program has written an invalid route name, and
    /// its rows need another one.
    pub can_be_served: bool,
}

impl Unserved {
    /// Maximum number of routes in one answer.
    pub const MOST: usize = 1_000;

    /// Creates a route that a relay could serve, with the age of its oldest message.
    #[must_use]
    pub fn new(route: Route, oldest_age: Duration) -> Self {
        Self { route, oldest_age, can_be_served: true }
    }

    /// Computes the answer of a store from all routes that it found, duplicates allowed: those
    /// whose oldest message is older than `after`. The longest waiting first, at most
    /// [`MOST`](Self::MOST).
    #[must_use]
    pub fn gather<N: AsRef<str>>(
        found: impl IntoIterator<Item = (N, Duration)>,
        after: Duration,
    ) -> Vec<Self> {
        // Keyed by the route and whether it is the original name.
        let mut oldest: BTreeMap<(Route, bool), Duration> = BTreeMap::new();
        for (name, age) in found.into_iter().filter(|(_, age)| *age > after) {
            let Some(route) = nearest(name.as_ref()) else { continue };
            let is_exact = route == *name.as_ref();
            let before = oldest.entry((route, is_exact)).or_default();
            *before = age.max(*before);
        }
        let mut unserved: Vec<Self> = oldest
            .into_iter()
            .map(|((route, is_exact), oldest_age)| Self { can_be_served: is_exact, route, oldest_age })
            .collect();
        unserved.sort_by_key(|unserved| Reverse(unserved.oldest_age));
        unserved.truncate(Self::MOST);
        unserved
    }
}

/// Returns the route of this name, or the nearest valid one: other programs also write to the
/// tables, and their typing errors should be visible. `None`: the name is empty.
fn nearest(name: &str) -> Option<Route> {
    Route::new(name).ok().or_else(|| Route::new(clean(name, Route::MAX_BYTES)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn told(found: &[(&str, u32)], after: u32) -> Vec<(String, Duration)> {
        let found = found.iter().map(|(name, age)| (*name, S * *age));
        let told = Unserved::gather(found, S * after);
        told.into_iter().map(|unserved| (unserved.route.into(), unserved.oldest_age)).collect()
    }

    #[test]
    fn each_route_is_told_once_with_its_oldest_the_longest_waiting_first() {
        let found = [("a", 3), ("b", 9), ("a", 7), ("c", 2), ("b", 1), ("d", 5)];
        let expected = [("b", 9), ("a", 7)].map(|(name, age)| (name.to_owned(), S * age));
        assert_eq!(told(&found, 5), expected);
    }

    #[test]
    fn a_name_that_no_route_can_have_is_told_as_near_as_one_can_be() {
        let long = "r".repeat(63) + "é";
        let expected = [("audit\u{fffd}".to_owned(), S * 3), ("r".repeat(63), S * 2)];
        let found = [("audit\n", 3), (&long, 2), ("", 1)];
        assert_eq!(told(&found, 0), expected);
        let found = found.into_iter().chain([("r", 1)]).map(|(name, age)| (name, S * age));
        let can_be_served: Vec<bool> =
            Unserved::gather(found, Duration::ZERO).iter().map(|unserved| unserved.can_be_served).collect();
        assert_eq!(can_be_served, [false, false, true]);
    }

    #[test]
    fn an_answer_has_so_many_routes_at_the_most() {
        let names: Vec<String> = (0..=Unserved::MOST).map(|at| format!("route-{at}")).collect();
        let found = names.iter().zip(1..).map(|(name, age)| (name, S * age));
        let told = Unserved::gather(found, Duration::ZERO);
        assert_eq!(told.len(), Unserved::MOST);
        assert!(told.iter().all(|unserved| unserved.route != "route-0"), "the youngest is left out");
    }
}
