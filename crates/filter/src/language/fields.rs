//! Words of ATM and SS7.

use super::ast::{AtmType, Mtp2Type, Mtp3Field};
use super::lexer::Keyword;

pub(super) fn atm_type(k: Keyword) -> Option<AtmType> {
    Some(match k {
        Keyword::Lane => AtmType::Lane,
        Keyword::Metac => AtmType::Metac,
        Keyword::Bcc => AtmType::Bcc,
        Keyword::OamF4Ec => AtmType::OamF4Ec,
        Keyword::OamF4Sc => AtmType::OamF4Sc,
        Keyword::Sc => AtmType::Sc,
        Keyword::Ilmic => AtmType::Ilmic,
        Keyword::Oam => AtmType::Oam,
        Keyword::OamF4 => AtmType::OamF4,
        Keyword::ConnectMsg => AtmType::ConnectMsg,
        Keyword::MetaConnect => AtmType::MetaConnect,
        _ => return None,
    })
}

pub(super) fn mtp2_type(k: Keyword) -> Option<Mtp2Type> {
    Some(match k {
        Keyword::Fisu => Mtp2Type::Fisu,
        Keyword::Lssu => Mtp2Type::Lssu,
        Keyword::Msu => Mtp2Type::Msu,
        Keyword::HFisu => Mtp2Type::HFisu,
        Keyword::HLssu => Mtp2Type::HLssu,
        Keyword::HMsu => Mtp2Type::HMsu,
        _ => return None,
    })
}

/// The field, and whether it is that of high-speed links.
pub(super) fn mtp3_field(k: Keyword) -> Option<(Mtp3Field, bool)> {
    Some(match k {
        Keyword::Sio => (Mtp3Field::Sio, false),
        Keyword::Opc => (Mtp3Field::Opc, false),
        Keyword::Dpc => (Mtp3Field::Dpc, false),
        Keyword::Sls => (Mtp3Field::Sls, false),
        Keyword::HSio => (Mtp3Field::Sio, true),
        Keyword::HOpc => (Mtp3Field::Opc, true),
        Keyword::HDpc => (Mtp3Field::Dpc, true),
        Keyword::HSls => (Mtp3Field::Sls, true),
        _ => return None,
    })
}
