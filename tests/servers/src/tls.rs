//! Certificates for servers that speak TLS: an authority of their own for each, made when they are set up.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::home::Home;

/// The names of the files in a server's folder.
pub(crate) const AUTHORITIES: &str = "authorities.pem";
pub(crate) const CERTIFICATE: &str = "server.pem";
pub(crate) const KEY: &str = "server.key";
/// The key, then the certificate, as Java wants them.
pub(crate) const BOTH: &str = "both.pem";

/// Writes an authority, and a certificate by it for `localhost` and `127.0.0.1`, into a server's folder.
pub(crate) fn write(home: &Home) -> Result<(), String> {
    let made = || -> Result<(String, String, String), rcgen::Error> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, "authority of a test");
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate()?;
        let authorities = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);

        let mut server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        server.distinguished_name.push(DnType::CommonName, "localhost");
        server.use_authority_key_identifier_extension = true;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &issuer)?.pem();
        Ok((authorities, certificate, key.serialize_pem()))
    };
    let (authorities, certificate, key) = made().map_err(|error| format!("certificates: {error}"))?;
    home.write(AUTHORITIES, &authorities)?;
    home.write(CERTIFICATE, &certificate)?;
    home.write(KEY, &key)?;
    home.write(BOTH, &format!("{key}{certificate}"))
}
