use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use mongodb::bson::doc;
use outbox_servers::{MongoDb, OrSkip as _};

use crate::client;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_message_ends_its_connection_and_nothing_else() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().beside(&shared).unwrap();
    let url = server.url();
    let address = url.trim_start_matches("mongodb://").split('/').next().unwrap();
    let wrong: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n....",
        // A length of zero, one that is far too long, and a message whose inside is cut short.
        &[0; 16],
        &[255, 255, 255, 127, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0],
        &[20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0, 0, 0, 0, 0],
    ];
    for bytes in wrong {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(bytes).unwrap();
        // Closed, in order or not.
        let read = stream.read(&mut [0; 1]);
        assert!(
            read.as_ref()
                .map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |read| *read == 0),
            "{read:?}"
        );
    }
    let client = client(&server).await;
    client.database("admin").run_command(doc! { "ping": 1 }).await.unwrap();
}
