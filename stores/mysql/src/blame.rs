//! Cause of a driver's error in one of the user's own statements: another transaction, the
//! environment, or the statement.
//!
//! By the number of the error: SQLSTATEs say too little here. What is not certain is the
//! statement's, as is every number that is not named.

use outbox_contract::backend::Blame;

use crate::error::{is_conflict, number};

/// The cause of an error. Pure.
pub(crate) fn blame(error: &sqlx::Error) -> Blame {
    if is_conflict(error) {
        return Blame::Conflict;
    }
    let is_environment = match error {
        sqlx::Error::Database(cause) => match number(error) {
            Some(number) => is_environment(number, cause.message()),
            None => false,
        },
        // The way to the server, or the pool in front of it. The driver says with `Configuration`
        // that it can't show a password in the clear.
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::Configuration(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => true,
        _ => false,
    };
    if is_environment { Blame::Environment } else { Blame::Handler }
}

fn is_environment(number: u16, message: &str) -> bool {
    is_of_the_connection(number, message)
        || is_a_limit(number, message)
        || is_of_operators(number, message)
        || is_of_the_machine(number)
}

/// No connection, or none any more; who may connect; a proxy that found no server.
fn is_of_the_connection(number: u16, message: &str) -> bool {
    match number {
        // MariaDB has another meaning for this number: a trigger that does not exist.
        4031 => message.contains("inactivity"),
        1040 | 1042 | 1043 | 1045 | 1047 | 1129 | 1130 | 1203 | 1226 | 1251 | 1524 | 1698 => true,
        1053 | 1077..=1080 | 1152 | 1154..=1161 | 1184 | 1820 | 1862 | 1927 | 2000..=2999 => true,
        3032 | 3118 | 3159 | 3169 | 3955 | 4151 | 9001 => true,
        // The server of a federated table.
        1429 => true,
        _ => false,
    }
}

/// Memory, threads, locks, prepared statements, time: limits of the server.
fn is_a_limit(number: u16, message: &str) -> bool {
    match number {
        1037 | 1038 | 1041 | 1135 | 1206 | 3015 | 3044 | 3170 | 3950 => true,
        // MariaDB's numbers from 4000 on are others.
        4081 | 4082 => message.contains("memory limit"),
        1243 | 1461 | 1615 | 1637 => true,
        // The cache of the binary log.
        1197 | 1705 => true,
        1969 | 3024 => true,
        _ => false,
    }
}

/// Canceled by somebody; a server that takes no writes (any more); a cluster that is at something
/// else.
fn is_of_operators(number: u16, message: &str) -> bool {
    match number {
        // Said of any option that forbids a statement, such as secure_file_priv.
        1290 => message.contains("read-only") || message.contains("read_only"),
        1036 | 1792 | 1836 | 1874 | 1881 | 3989 => true,
        1317 | 3100 | 3781 | 3782 | 4094 => true,
        _ => false,
    }
}

/// Disk, files, damage, a commit that was cut short.
fn is_of_the_machine(number: u16) -> bool {
    match number {
        // Of files that a statement names and that are not there (EE_STAT, EE_FILENOTFOUND).
        13 | 29 => false,
        // Of the server's own files and memory.
        1..=999 => true,
        1021 | 1023 | 1024 | 1026 | 1030 | 1034 | 1035 | 1114 | 1180 | 1181 | 1194 | 1195 => true,
        1712 | 1877 | 1878 | 3675 | 3884 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::StoreErrorKind;

    use super::*;
    use crate::error::meaning_of;

    fn of_number(number: u16, message: &str) -> Blame {
        if meaning_of(number).0 == StoreErrorKind::Conflict {
            Blame::Conflict
        } else if is_environment(number, message) {
            Blame::Environment
        } else {
            Blame::Handler
        }
    }

    const CONFLICTS: &[u16] = &[1020, 1205, 1213, 1412, 1614, 3058, 3101, 3132, 3133, 3572];

    const ENVIRONMENT: &[u16] = &[
        3, 5, 20, 1021, 1026, 1030, 1034, 1036, 1037, 1038, 1040, 1041, 1045, 1047, 1053, 1077, 1079, 1080,
        1114, 1129, 1130, 1135, 1152, 1158, 1159, 1160, 1161, 1180, 1181, 1194, 1195, 1197, 1203, 1206, 1226,
        1243, 1251, 1317, 1429, 1461, 1524, 1615, 1637, 1698, 1705, 1712, 1792, 1820, 1836, 1862, 1874, 1877,
        1878, 1881, 1927, 1969, 2003, 2006, 2013, 3015, 3024, 3032, 3044, 3100, 3118, 3159, 3169, 3170, 3675,
        3950, 4151, 9001,
    ];

    const HANDLER: &[u16] = &[
        13, 29, 1044, 1046, 1048, 1049, 1050, 1052, 1054, 1062, 1064, 1103, 1118, 1142, 1143, 1146, 1153,
        1216, 1217, 1227, 1242, 1264, 1290, 1292, 1305, 1364, 1365, 1366, 1370, 1390, 1406, 1419, 1436, 1451,
        1452, 1525, 1644, 1665, 1690, 1713, 3140, 3819, 4025, 4031, 4081, 4084, 0, 65_000,
    ];

    #[test]
    fn every_number_has_a_decision() {
        for (numbers, expected) in
            [(CONFLICTS, Blame::Conflict), (ENVIRONMENT, Blame::Environment), (HANDLER, Blame::Handler)]
        {
            for number in numbers {
                assert_eq!(of_number(*number, ""), expected, "{number}");
            }
        }
        for (number, message) in [
            (
                1290,
                "The MySQL server is running with the --super-read-only option so it cannot execute this statement",
            ),
            (
                1290,
                "The MariaDB server is running with the --read-only option so it cannot execute this statement",
            ),
            (4031, "The client was disconnected by the server because of inactivity. See wait_timeout"),
            (
                4082,
                "Connection closed. Connection memory limit 16777216 bytes exceeded. Consumed 20000000 bytes.",
            ),
        ] {
            assert_eq!(of_number(number, message), Blame::Environment, "{number}");
        }
        let files = "The MySQL server is running with the --secure-file-priv option so it cannot execute this statement";
        assert_eq!(of_number(1290, files), Blame::Handler);
    }

    /// The append and the commit report the same errors by their kinds.
    #[test]
    fn the_kinds_of_errors_say_the_same() {
        for number in 1..5_000 {
            let kind = meaning_of(number).0;
            // These are told apart by their words, as above.
            let by_words = matches!(number, 1290 | 4031);
            if kind == StoreErrorKind::Unavailable && !by_words {
                assert_eq!(of_number(number, ""), Blame::Environment, "{number}");
            }
            if kind == StoreErrorKind::Invalid || kind == StoreErrorKind::NotMigrated {
                assert_eq!(of_number(number, ""), Blame::Handler, "{number}");
            }
        }
    }
}
