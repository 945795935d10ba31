//! Tests of the parts of the benchmark that measure nothing themselves. They are here because a
//! benchmark runs no tests.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
#![allow(dead_code, reason = "the benchmark uses the rest")]

mod noise;
mod page;
mod plot;
mod tuned;
mod turns;

use outbox_tests::bench::{pair, process, report, stats};

mod of_stats {
    use crate::stats::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), Some(100.0));
        assert_eq!(quantile(&values, 0.99), Some(198.0));
        assert_eq!(quantile(&values, 1.0), Some(200.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}

mod of_turns {
    use crate::turns::*;

    #[test]
    fn each_round_has_all_variants_behind_different_ones() {
        assert_eq!([turns(3, 0), turns(3, 1), turns(3, 2)], [[0, 1, 2], [0, 2, 1], [2, 0, 1]]);
        let mut before = std::collections::BTreeSet::new();
        for round in 0..5 {
            let order = turns(5, round);
            before.extend(order.windows(2).filter(|pair| pair[1] == 0).map(|pair| pair[0]));
            assert_eq!(order.iter().sum::<usize>(), 10);
        }
        assert_eq!(before.len(), 2, "of neighbors");
        assert!(turns(0, 1).is_empty());
    }
}

mod of_noise {
    use crate::noise::*;

    /// Noise of a machine: the same for every run of the test, with outliers on both sides.
    fn noisy(around: f64, seed: u64, count: usize) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut one = || {
            let usual = 1.0 + (random.f64() - 0.5) * 0.1;
            if random.u32(0..10) == 0 { usual * (0.5 + random.f64() * 1.5) } else { usual }
        };
        (0..count).map(|_| around * one()).collect()
    }

    #[test]
    fn a_series_compared_with_its_like_has_moved_in_few_of_a_thousand_comparisons() {
        let moved = |seed| {
            let ratio = Ratio::of(&noisy(20.0, seed, 20), &noisy(20.0, seed + 1_000_000, 20)).unwrap();
            ratio.moved() != Moved::No
        };
        let wrong = (0..1_000).filter(|seed| moved(*seed)).count();
        assert!(wrong <= 10, "{wrong} of 1,000, where 5 are expected at most");
    }

    #[test]
    fn a_change_larger_than_the_noise_of_a_median_is_found_in_both_directions() {
        for (factor, expected) in [(1.1, Moved::More), (0.9, Moved::Less)] {
            let found = (0..200).filter(|seed| {
                let head = noisy(20.0 * factor, seed + 1_000_000, 25);
                Ratio::of(&noisy(20.0, *seed, 25), &head).unwrap().moved() == expected
            });
            let found = found.count();
            assert!(found >= 190, "{factor}: found {found} times of 200");
        }
    }

    #[test]
    fn outliers_move_nothing() {
        let base = vec![10.0; 20];
        let mut head = vec![10.0; 20];
        head[..5].fill(1_000.0);
        let ratio = Ratio::of(&base, &head).unwrap();
        assert_eq!((ratio.median, ratio.moved()), (1.0, Moved::No));
    }

    #[test]
    fn few_pairs_say_nothing_and_what_can_not_be_divided_is_no_pair() {
        assert_eq!(fewest(), 9, "2 of 2^9 are less than five of a thousand, and 2 of 2^8 are not");
        assert_eq!(Ratio::of(&[1.0; 8], &[2.0; 8]), None);
        assert_eq!(Ratio::of(&[1.0; 9], &[2.0; 9]).unwrap().moved(), Moved::More);
        assert_eq!(Ratio::of(&[0.0; 9], &[0.0; 9]), None);
        assert_eq!(Ratio::of(&[], &[]), None);
    }

    #[test]
    fn a_change_that_is_sure_and_tiny_does_not_count() {
        let ratio = Ratio::of(&[100.0; 30], &[100.9; 30]).unwrap();
        assert!(ratio.low > 1.0 && ratio.moved() == Moved::No, "{ratio:?}");
    }

    /// Of twenty coins fewer than four fall on one side in 0.26 %, and fewer than five in 1.2 %: the
    /// fourth from each end.
    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        let head: Vec<f64> = (1..=20).map(f64::from).collect();
        let ratio = Ratio::of(&[1.0; 20], &head).unwrap();
        assert_eq!((ratio.low, ratio.median, ratio.high), (4.0, 10.5, 17.0));
    }

    #[test]
    fn a_result_is_told_in_words() {
        let told = |low, median, high| Ratio { low, median, high }.to_string();
        assert_eq!(told(0.98, 1.0, 1.03), "no difference beyond the noise (-2.0 % to +3.0 %)");
        assert_eq!(told(1.05, 1.1, 1.2), "10.0 % more, sure (+5.0 % to +20.0 %)");
        assert_eq!(told(0.8, 0.9, 0.95), "10.0 % less, sure (-20.0 % to -5.0 %)");
    }
}

mod of_process {
    use crate::process::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 25 17 3 4 20 0 9 0 100 1000 10";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn work_of_the_processors_is_all_but_idling_and_waiting() {
        let stat = "cpu  1 2 4 1000 2000 8 16 32 64 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(working(stat), Some(63));
        assert_eq!(working("cpu  1 2 4 1000"), Some(7), "of an old system");
        assert_eq!(working("intr 1"), None);
    }

    #[test]
    fn memory_is_given_in_bytes() {
        let status = "Name:\trelay\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(bytes(status, "VmRSS"), Some(1 << 20));
        assert_eq!(bytes(status, "VmHWM"), Some(2 << 20));
        assert_eq!(bytes(status, "VmSwap"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        let (now, most) = memory();
        assert!(now > 0 && most >= now);
        let mut sum = 0_u64;
        while cpu().is_zero() {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}

mod of_report {
    use crate::report::*;

    fn table() -> Table {
        let mut table = Table::new("append", "what it costs", &["per s", "us"]);
        table.row("without", [Some(12_345.6), Some(1.234)]);
        table.row("with a message", [Some(45.5), None]);
        table
    }

    #[test]
    fn columns_stand_under_each_other() {
        let text = table().to_string();
        let lines: Vec<&str> = text.lines().skip(3).collect();
        let expected = [
            "                  per s    us",
            "  without         12346  1.23",
            "  with a message   45.5     -",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_value_is_found_by_its_names() {
        assert_eq!(table().value("without", "us"), Some(1.234));
        assert_eq!(table().value("with a message", "us"), None);
        assert_eq!(table().value("nothing", "us"), None);
        assert_eq!(table().value("without", "ms"), None);
    }

    #[test]
    fn what_was_not_measured_is_null_in_json() {
        let json = serde_json::to_value(table()).unwrap();
        assert_eq!(json["rows"][1]["values"], serde_json::json!([45.5, null]));
    }

    #[test]
    fn figures_that_do_not_count_are_left_out() {
        assert_eq!([0.0, 0.25, 9.876, 43.21, 1234.6].map(figures), ["0", "0.25", "9.88", "43.2", "1235"]);
    }
}

mod of_plot {
    use crate::plot::*;

    fn widths(svg: &str) -> Vec<f64> {
        let bars = svg.lines().filter(|line| line.contains("height=\"14\""));
        bars.map(|line| line.split(" width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn bars_are_drawn_to_one_scale() {
        let rows = vec![("a".to_owned(), vec![10.0, 30.0]), ("b".to_owned(), vec![20.0, 0.0])];
        let svg = Bars { title: "CPU".to_owned(), parts: vec!["one", "two"], rows }.svg();
        assert_eq!(widths(&svg), [ROOM / 4.0, ROOM * 0.75, ROOM / 2.0, 0.0]);
        assert!(
            svg.contains(">40.0</text>") && svg.contains(">20.0</text>"),
            "the sum stands behind each: {svg}"
        );
    }

    #[test]
    fn nothing_makes_a_picture_without_bars() {
        let svg = Bars { title: "a < b & c".to_owned(), parts: vec![], rows: vec![] }.svg();
        assert_eq!(widths(&svg), [0.0; 0]);
        assert!(svg.contains("a &lt; b &amp; c"));
    }
}

mod of_page {
    use crate::page::*;
    use crate::report::Table;

    fn report() -> Report {
        let mut table = Table::new("throughput", "60,000 messages", &["messages/s", "own us", "broker us"]);
        table.row("ours, default", [Some(75_000.0), Some(7.5), Some(3.0)]);
        table.row("part: fetch and settle", [Some(150_000.0), Some(4.0), None]);
        table.row("part: nothing", [None, None, None]);
        let mut more = Table::new("memory", "postgres-kafka: a backlog", &["MiB", "messages/s"]);
        more.row("a | b", [None, Some(1.0)]);
        let asked = Table::new("asked", "statements", &["per s"]);
        Report {
            profile: "quick".to_owned(),
            processor: None,
            processors: Some(2),
            in_use: Some(1.75),
            pair: "postgres-kafka".to_owned(),
            servers: vec!["PostgreSQL 18".to_owned(), "Kafka 4.3".to_owned()],
            tables: vec![table, more, asked],
        }
    }

    #[test]
    fn a_page_has_the_tables_and_shows_every_picture() {
        let (text, pictures) = render(&[report()]);
        for part in [
            "## PostgreSQL to Kafka",
            "| ours, default | 75,000 | 7.50 | 3.00 |",
            "\nA backlog.\n",
            "| a \\| b | | 1.00 |",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("part: nothing") && !text.contains("| per s |"), "{text}");
        let names: Vec<&str> = pictures.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["benchmark-postgres-kafka-rate.svg", "benchmark-postgres-kafka-cpu.svg"]);
        assert!(names.iter().all(|name| text.contains(&format!("(images/{name})"))), "{text}");
        let prose = text.lines().filter(|line| !line.starts_with(['|', '!']));
        assert!(prose.into_iter().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn a_busy_machine_is_told() {
        let calm = Report { in_use: Some(0.1), ..report() };
        assert!(render(&[report()]).0.contains("The machine was busy"));
        assert!(!render(&[calm]).0.contains("busy"));
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let text = serde_json::to_string(&report()).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(render(&[read]), render(&[report()]));
    }
}

mod of_pair {
    use crate::pair::*;

    #[test]
    fn a_pair_is_read_as_it_is_written() {
        for pair in Pair::all() {
            assert_eq!(pair.to_string().parse(), Ok(pair));
        }
        assert_eq!(Pair::all().count(), Database::ALL.len() * Broker::ALL.len());
        let problem = "postgres".parse::<Pair>().unwrap_err();
        assert!(problem.contains("\"postgres\"") && problem.contains("postgres-kafka"), "{problem}");
    }
}

mod of_tuned {
    use crate::tuned::*;

    #[test]
    fn what_was_asked_for_comes_last() {
        let asked: Setting = "fetch_batch=7".parse().unwrap();
        let all = tuned(&[asked]);
        assert_eq!(all.last(), Some(&asked));
        assert!(all.len() > 1);
    }

    #[test]
    fn what_is_no_setting_is_named_with_those_that_are() {
        for wrong in ["fetch_batch", "fetch_batch=many", "speed=3", "fetch_batch=-1"] {
            let problem = wrong.parse::<Setting>().unwrap_err();
            assert!(!problem.is_empty(), "{wrong}");
        }
        let problem = "speed=3".parse::<Setting>().unwrap_err();
        assert!(problem.contains("\"speed\"") && problem.contains("max_in_flight_bytes"), "{problem}");
    }
}
