//! Certificates for servers that speak TLS, and for their clients: an authority of their own for
//! each server, created at its setup.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::home::Home;

/// The names of the files in a server's folder.
pub(crate) const AUTHORITIES: &str = "authorities.pem";
pub(crate) const CERTIFICATE: &str = "server.pem";
pub(crate) const KEY: &str = "server.key";
/// The key, then the certificate, in the order that Java requires.
pub(crate) const BOTH: &str = "both.pem";
/// A client's, by the same authority.
pub(crate) const CLIENT: &str = "client.pem";
pub(crate) const CLIENT_KEY: &str = "client.key";

/// Writes an authority, and certificates by it for `localhost` and `127.0.0.1` and for a client
/// called `client`, into a server's folder.
pub(crate) fn write(home: &Home) -> Result<(), String> {
    write_of(home, &["localhost", "127.0.0.1"])
}

/// Like `write`, for a server of these names.
pub(crate) fn write_of(home: &Home, names: &[&str]) -> Result<(), String> {
    let made = made(names).map_err(|error| format!("certificates: {error}"))?;
    home.write(AUTHORITIES, &made.authorities)?;
    let Made { server: (certificate, key), client, .. } = made;
    home.write(CERTIFICATE, &certificate)?;
    home.write(KEY, &key)?;
    home.write(BOTH, &format!("{key}{certificate}"))?;
    home.write(CLIENT, &client.0)?;
    home.write(CLIENT_KEY, &client.1)
}

/// All in PEM; certificates with their keys.
struct Made {
    authorities: String,
    server: (String, String),
    client: (String, String),
}

fn made(names: &[&str]) -> Result<Made, rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "authority of a test");
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority_key = KeyPair::generate()?;
    let authorities = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);

    let signed = |name: &str, addresses: &[&str], purpose: ExtendedKeyUsagePurpose| {
        let addresses: Vec<String> = addresses.iter().map(|address| (*address).to_owned()).collect();
        let mut params = CertificateParams::new(addresses)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        Ok::<_, rcgen::Error>((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
    };
    let server = signed("server", names, ExtendedKeyUsagePurpose::ServerAuth)?;
    let client = signed("client", &[], ExtendedKeyUsagePurpose::ClientAuth)?;
    Ok(Made { authorities, server, client })
}
