"""A certificate of one's own, as C2PA asks for: an authority, and a key that it vouches for."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass
class Credentials:
    """PEM files."""

    certificates: Path
    private_key: Path
    authority: Path


def make_credentials(folder: Path) -> Credentials:
    """Write a chain of two certificates and the key of the first."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    top = _certificate("Example authority", authority, "Example authority", authority, authority=True)
    own = _certificate("Example speaker", key, "Example authority", authority, authority=False)
    made = Credentials(*(folder / name for name in ("chain.pem", "key.pem", "authority.pem")))
    made.certificates.write_bytes(own + top)
    made.authority.write_bytes(top)
    made.private_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, *, authority: bool
) -> bytes:
    now, off = (
        datetime.now(UTC),
        dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        ),
    )
    usage = x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **off)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=100))
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not authority:
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        builder = builder.add_extension(purpose, critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def _name(common: str) -> x509.Name:
    parts = {NameOID.ORGANIZATION_NAME: "Example", NameOID.COMMON_NAME: common}
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in parts.items()])
