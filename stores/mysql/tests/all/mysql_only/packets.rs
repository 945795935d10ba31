//! Messages that are larger than the server takes in one statement.

use outbox_contract::{AppendError, Outgoing, StoreErrorKind, Transactional};
use outbox_servers::{MariaDb, MySql, OrSkip};

use super::support::{Fixture, message, options};

#[tokio::test]
async fn a_message_above_max_allowed_packet_is_refused_and_the_transaction_goes_on() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.config("max-allowed-packet = 1M").start().or_skip() else { continue };
        let fixture = Fixture::on(server, options()).await;
        let mut tx = fixture.store.begin().await.unwrap();
        let large = message("a").with_payload(vec![7; 2 * 1024 * 1024]);
        for outgoing in [
            Outgoing::from(large.clone()),
            Outgoing::from(large).due_at(outbox_contract::Timestamp::from_micros(1)),
        ] {
            let AppendError::Store(error) =
                fixture.store.append(&mut tx, &[message("a").into(), outgoing]).await.unwrap_err()
            else {
                panic!("expected another error");
            };
            assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("raise max_allowed_packet"), "{error}");
        }
        // Headers are sent as JSON, where a quote takes two bytes.
        let mut quotes = message("a").with_payload(vec![7; 748 * 1024]);
        for n in 0..20 {
            quotes = quotes.with_header(format!("quotes-{n}"), "\"".repeat(8_192)).unwrap();
        }
        let refused = fixture.store.append(&mut tx, &[quotes.into()]).await.unwrap_err();
        let AppendError::Store(error) = refused else { panic!("expected another error: {refused}") };
        assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
        // Many that are small enough each, and too much together.
        let many: Vec<Outgoing> =
            (0..10).map(|_| message("a").with_payload(vec![7; 300 * 1024]).into()).collect();
        fixture.store.append(&mut tx, &many).await.unwrap();
        fixture.store.commit(tx).await.into_result().unwrap();
        assert_eq!(fixture.number("select count(*) from outbox_message").await, 10);
    }
}
