//! Tests of the parts of the benchmark that measure nothing themselves. They are here because a
//! benchmark runs no tests.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
#![allow(dead_code, reason = "the benchmark uses the rest")]

mod pair;
mod plot;
mod process;
mod report;
mod stats;
mod tuned;

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

mod of_process {
    use crate::process::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 25 17 3 4 20 0 9 0 100 1000 10";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks(""), None);
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
        let bars = svg.lines().filter(|line| line.contains("height=\"22\""));
        bars.map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
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
