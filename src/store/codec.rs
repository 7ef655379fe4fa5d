//! Primitive encodings: every number is a LEB128 varint unless a layout says otherwise; texts and bytes are
//! a varint length and the bytes. A stored value is *sealed*: `crc32c(key, payload)` as 4 bytes, little
//! endian, and then the payload; the key is part of the sum so that a value under a wrong key is noticed.

/// Stored bytes that are not what this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub(super) struct Malformed(pub(super) &'static str);

pub(super) fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low_byte(value) | 0x80);
        value >>= 7;
    }
    out.push(low_byte(value));
}

fn low_byte(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    put_u64(out, value.into());
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// `payload` with its checksum in front, as stored under `key`.
pub(super) fn seal(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(payload.len() + SEAL_BYTES);
    sealed.extend_from_slice(&checksum(key, payload).to_le_bytes());
    sealed.extend_from_slice(payload);
    sealed
}

/// The payload of a sealed value, if the checksum agrees.
pub(super) fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], Malformed> {
    let (sum, payload) = sealed.split_first_chunk::<SEAL_BYTES>().ok_or(Malformed("shorter than its checksum"))?;
    if u32::from_le_bytes(*sum) != checksum(key, payload) {
        return Err(Malformed("the checksum does not agree"));
    }
    Ok(payload)
}

/// The checksum in front of a sealed value.
pub(super) fn seal_of(sealed: &[u8]) -> u32 {
    sealed.first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum))
}

/// Bytes that sealing adds.
pub(super) const SEAL_BYTES: usize = 4;

fn checksum(key: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), payload)
}

/// Reads encoded values from the front of a slice.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// An error unless everything was read.
    pub(super) fn finish(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes left over")) }
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.rest.split_first().ok_or(Malformed("too short"))?;
        self.rest = rest;
        Ok(first)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed("a number over 64 bits"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number over 64 bits"))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.u64()?).map_err(|_| Malformed("a number over 32 bits"))
    }

    /// A count of items that each take at least one byte, so that a damaged count cannot ask for memory.
    pub(super) fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u64()?).map_err(|_| Malformed("a count over the size"))?;
        if count > self.rest.len() { Err(Malformed("a count over the size")) } else { Ok(count) }
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.count()?;
        let (bytes, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed("too short"))?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text that is not UTF-8"))
    }
}
