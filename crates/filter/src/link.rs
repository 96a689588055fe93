//! Link types: their numbers, names, and where their headers hold what filters ask for.

macro_rules! link_types {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// The kind of a link's packets: libpcap's DLT_ number.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct LinkType(pub u16);

        #[allow(missing_docs)]
        impl LinkType {
            $(pub const $name: LinkType = LinkType($number);)*

            /// The link types that have a name here.
            pub const NAMED: &[(LinkType, &str)] = &[$((LinkType::$name, $text)),*];
        }
    };
}

link_types! {
    NULL = 0, "NULL";
    EN10MB = 1, "EN10MB";
    IEEE802 = 6, "IEEE802";
    ARCNET = 7, "ARCNET";
    SLIP = 8, "SLIP";
    PPP = 9, "PPP";
    FDDI = 10, "FDDI";
    ATM_RFC1483 = 11, "ATM_RFC1483";
    RAW = 12, "RAW";
    SLIP_BSDOS = 15, "SLIP_BSDOS";
    PPP_BSDOS = 16, "PPP_BSDOS";
    PFSYNC = 18, "PFSYNC";
    ATM_CLIP = 19, "ATM_CLIP";
    PPP_SERIAL = 50, "PPP_SERIAL";
    PPP_ETHER = 51, "PPP_ETHER";
    SYMANTEC_FIREWALL = 99, "SYMANTEC_FIREWALL";
    C_HDLC = 104, "C_HDLC";
    IEEE802_11 = 105, "IEEE802_11";
    FRELAY = 107, "FRELAY";
    LOOP = 108, "LOOP";
    ENC = 109, "ENC";
    HDLC = 112, "HDLC";
    LINUX_SLL = 113, "LINUX_SLL";
    LTALK = 114, "LTALK";
    PFLOG = 117, "PFLOG";
    PRISM_HEADER = 119, "PRISM_HEADER";
    IP_OVER_FC = 122, "IP_OVER_FC";
    SUNATM = 123, "SUNATM";
    IEEE802_11_RADIO = 127, "IEEE802_11_RADIO";
    ARCNET_LINUX = 129, "ARCNET_LINUX";
    JUNIPER_MLPPP = 130, "JUNIPER_MLPPP";
    JUNIPER_MLFR = 131, "JUNIPER_MLFR";
    JUNIPER_ES = 132, "JUNIPER_ES";
    JUNIPER_GGSN = 133, "JUNIPER_GGSN";
    JUNIPER_MFR = 134, "JUNIPER_MFR";
    JUNIPER_ATM2 = 135, "JUNIPER_ATM2";
    JUNIPER_SERVICES = 136, "JUNIPER_SERVICES";
    JUNIPER_ATM1 = 137, "JUNIPER_ATM1";
    APPLE_IP_OVER_IEEE1394 = 138, "APPLE_IP_OVER_IEEE1394";
    MTP2_WITH_PHDR = 139, "MTP2_WITH_PHDR";
    MTP2 = 140, "MTP2";
    IEEE802_11_RADIO_AVS = 163, "IEEE802_11_RADIO_AVS";
    JUNIPER_MONITOR = 164, "JUNIPER_MONITOR";
    BACNET_MS_TP = 165, "BACNET_MS_TP";
    PPP_PPPD = 166, "PPP_PPPD";
    JUNIPER_PPPOE = 167, "JUNIPER_PPPOE";
    JUNIPER_PPPOE_ATM = 168, "JUNIPER_PPPOE_ATM";
    JUNIPER_ETHER = 178, "JUNIPER_ETHER";
    JUNIPER_PPP = 179, "JUNIPER_PPP";
    JUNIPER_FRELAY = 180, "JUNIPER_FRELAY";
    JUNIPER_CHDLC = 181, "JUNIPER_CHDLC";
    MFR = 182, "MFR";
    JUNIPER_VP = 183, "JUNIPER_VP";
    PPI = 192, "PPI";
    JUNIPER_ISM = 194, "JUNIPER_ISM";
    ERF = 197, "ERF";
    JUNIPER_ST = 200, "JUNIPER_ST";
    AX25_KISS = 202, "AX25_KISS";
    IPNET = 226, "IPNET";
    IPV4 = 228, "IPV4";
    IPV6 = 229, "IPV6";
    JUNIPER_VS = 232, "JUNIPER_VS";
    JUNIPER_SRX_E2E = 233, "JUNIPER_SRX_E2E";
    JUNIPER_FIBRECHANNEL = 234, "JUNIPER_FIBRECHANNEL";
    JUNIPER_ATM_CEMIC = 238, "JUNIPER_ATM_CEMIC";
    NETANALYZER = 240, "NETANALYZER";
    NETANALYZER_TRANSPARENT = 241, "NETANALYZER_TRANSPARENT";
    LINUX_SLL2 = 276, "LINUX_SLL2";
    DSA_TAG_BRCM = 281, "DSA_TAG_BRCM";
    DSA_TAG_DSA = 284, "DSA_TAG_DSA";
}

/// The numbers that libpcap gives to link types it can filter by offset (`DLT_MATCHING_MIN`, `DLT_MATCHING_MAX` of 1.10.3).
const MATCHING: std::ops::RangeInclusive<u16> = 104..=289;

/// An offset that a link type does not have. As libpcap does, sums with it wrap and give an offset behind every packet.
pub(crate) const NOT_SET: u32 = u32::MAX;

/// Where a link type's headers hold what filters ask for: offsets in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// The link-layer header.
    pub(crate) header: u32,
    /// The field that says what the payload is.
    pub(crate) kind: u32,
    /// The payload.
    pub(crate) payload: u32,
    /// The network header in the payload.
    pub(crate) network: u32,
    /// The network header if no SNAP header stands before it.
    pub(crate) network_without_snap: u32,
}

impl LinkType {
    /// The link type of a name, in any case, with or without `DLT_`; or of a number.
    pub fn of_name(name: &str) -> Option<LinkType> {
        let upper = name.to_ascii_uppercase();
        let short = upper.strip_prefix("DLT_").unwrap_or(&upper);
        let named = LinkType::NAMED.iter().find(|(_, n)| *n == short).map(|(l, _)| *l);
        named.or_else(|| short.parse().ok().map(LinkType))
    }

    /// Its name, if it has one here.
    pub fn name(self) -> Option<&'static str> {
        LinkType::NAMED.iter().find(|(l, _)| *l == self).map(|(_, n)| *n)
    }

    /// Ethernet, and what carries its frames behind a header of fixed size.
    pub(crate) fn is_ethernet(self) -> bool {
        matches!(self, LinkType::EN10MB | LinkType::NETANALYZER | LinkType::NETANALYZER_TRANSPARENT) || self.is_dsa()
    }

    /// Ethernet with the tag of a switch (Distributed Switch Architecture) behind the addresses.
    pub(crate) fn is_dsa(self) -> bool {
        matches!(self, LinkType::DSA_TAG_BRCM | LinkType::DSA_TAG_DSA)
    }

    /// 802.11, with or without a header of the receiver before it.
    pub(crate) fn is_wlan(self) -> bool {
        matches!(
            self,
            LinkType::IEEE802_11
                | LinkType::PRISM_HEADER
                | LinkType::IEEE802_11_RADIO_AVS
                | LinkType::IEEE802_11_RADIO
                | LinkType::PPI
        )
    }

    /// Packets that begin with their network header.
    pub fn is_network(self) -> bool {
        matches!(self, LinkType::RAW | LinkType::IPV4 | LinkType::IPV6)
    }

    pub(crate) fn is_arcnet(self) -> bool {
        matches!(self, LinkType::ARCNET | LinkType::ARCNET_LINUX)
    }

    pub(crate) fn is_mtp2(self) -> bool {
        matches!(self, LinkType::MTP2 | LinkType::MTP2_WITH_PHDR | LinkType::ERF)
    }

    pub(crate) fn is_juniper(self) -> bool {
        self.name().is_some_and(|n| n.starts_with("JUNIPER"))
    }

    /// Where its headers hold what filters ask for (`gencode.c`: `init_linktype`). `None`: libpcap does not know it.
    pub(crate) fn layout(self) -> Option<Layout> {
        let [header, kind, payload, network, network_without_snap] = match self {
            LinkType::ARCNET => [0, 2, 6, 0, 0],
            LinkType::ARCNET_LINUX => [0, 4, 8, 0, 0],
            LinkType::EN10MB => [0, 12, 14, 0, 3],
            LinkType::DSA_TAG_BRCM | LinkType::DSA_TAG_DSA => [0, 16, 18, 0, 3],
            LinkType::SLIP => [0, NOT_SET, 16, 0, 0],
            LinkType::SLIP_BSDOS => [0, NOT_SET, 24, 0, 0],
            LinkType::NULL | LinkType::LOOP => [0, 0, 4, 0, 0],
            LinkType::ENC => [0, 0, 12, 0, 0],
            LinkType::PPP | LinkType::PPP_PPPD | LinkType::C_HDLC | LinkType::HDLC | LinkType::PPP_SERIAL => {
                [0, 2, 4, 0, 0]
            }
            LinkType::PPP_ETHER => [0, 6, 8, 0, 0],
            LinkType::PPP_BSDOS => [0, 5, 24, 0, 0],
            LinkType::FDDI => [0, 13, 13, 8, 3],
            LinkType::IEEE802 => [0, 14, 14, 8, 3],
            wlan if wlan.is_wlan() => [0, 24, 0, 8, 3],
            LinkType::ATM_RFC1483 | LinkType::ATM_CLIP => [0, 0, 0, 8, 3],
            LinkType::SUNATM => [0, 4, 4, 8, 3],
            LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => [0, NOT_SET, 0, 0, 0],
            LinkType::LINUX_SLL => [0, 14, 16, 0, 0],
            LinkType::LINUX_SLL2 => [0, 0, 20, 0, 0],
            LinkType::LTALK => [0, NOT_SET, 0, 0, 0],
            LinkType::IP_OVER_FC => [0, 16, 16, 8, 3],
            LinkType::FRELAY => [0, NOT_SET, 0, 0, 0],
            LinkType::MFR => [0, NOT_SET, 0, 4, 0],
            LinkType::APPLE_IP_OVER_IEEE1394 => [0, 16, 18, 0, 0],
            LinkType::SYMANTEC_FIREWALL => [0, 6, 44, 0, 0],
            LinkType::PFLOG => [0, 0, 0, 0, 0],
            LinkType::JUNIPER_MFR
            | LinkType::JUNIPER_MLFR
            | LinkType::JUNIPER_MLPPP
            | LinkType::JUNIPER_PPP
            | LinkType::JUNIPER_CHDLC
            | LinkType::JUNIPER_FRELAY => [0, 4, 4, 0, NOT_SET],
            LinkType::JUNIPER_ATM1 => [0, 4, 4, 0, 10],
            LinkType::JUNIPER_ATM2 => [0, 8, 8, 0, 10],
            LinkType::JUNIPER_PPPOE | LinkType::JUNIPER_ETHER => [0, 16, 14, 18, 21],
            LinkType::JUNIPER_PPPOE_ATM => [0, 4, 6, 0, NOT_SET],
            LinkType::JUNIPER_GGSN => [0, 6, 12, 0, NOT_SET],
            LinkType::JUNIPER_ES => [0, 6, NOT_SET, NOT_SET, NOT_SET],
            LinkType::JUNIPER_MONITOR => [0, 12, 12, 0, NOT_SET],
            LinkType::JUNIPER_SERVICES => [0, 12, NOT_SET, NOT_SET, NOT_SET],
            LinkType::JUNIPER_VP | LinkType::JUNIPER_ST => [0, 18, NOT_SET, NOT_SET, NOT_SET],
            LinkType::JUNIPER_ISM
            | LinkType::JUNIPER_VS
            | LinkType::JUNIPER_SRX_E2E
            | LinkType::JUNIPER_FIBRECHANNEL
            | LinkType::JUNIPER_ATM_CEMIC => [0, 8, NOT_SET, NOT_SET, NOT_SET],
            LinkType::PFSYNC => [0, NOT_SET, 4, 0, 0],
            LinkType::IPNET => [0, 1, 24, 0, NOT_SET],
            LinkType::NETANALYZER => [4, 16, 18, 0, 3],
            LinkType::NETANALYZER_TRANSPARENT => [12, 24, 26, 0, 3],
            LinkType::BACNET_MS_TP
            | LinkType::MTP2
            | LinkType::MTP2_WITH_PHDR
            | LinkType::ERF
            | LinkType::AX25_KISS => [0, NOT_SET, NOT_SET, NOT_SET, NOT_SET],
            LinkType(n) if MATCHING.contains(&n) => [0, NOT_SET, NOT_SET, NOT_SET, NOT_SET],
            _ => return None,
        };
        Some(Layout { header, kind, payload, network, network_without_snap })
    }
}

impl std::fmt::Display for LinkType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "DLT {}", self.0),
        }
    }
}
