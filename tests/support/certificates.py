"""Certificates for servers of tests: an authority of its own, and a key and certificate that it signed."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_A_DAY = timedelta(days=1)


def write_certificate(server: Path, authority: Path, address: str) -> None:
    """Writes key and certificates of a server at an IP address to `server`, and whom to trust to `authority`."""
    ca_key, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    ca = _certificate("ca", ca_key, "ca", ca_key, [(x509.BasicConstraints(ca=True, path_length=0), True)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
    certificate = _certificate("server", key, "ca", ca_key, [(names, False)])
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    authority.write_bytes(ca.public_bytes(Encoding.PEM))
    server.write_bytes(private + certificate.public_bytes(Encoding.PEM) + ca.public_bytes(Encoding.PEM))


def _certificate(
    subject: str,
    key: EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _A_DAY)
        .not_valid_after(now + _A_DAY)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
