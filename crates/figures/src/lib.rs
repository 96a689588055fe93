//! The evaluation of the BPF+ paper (section 8), again: Figures 6 to 9 with the filters of this project, beside libpcap, and the
//! same in C.
//!
//! The one idea: all that is compared runs in one process over the same generated packets, in rounds in which each has its turn, and
//! only after its verdicts were found to be right. Figures are medians; ratios are those of medians.
//!
//! | module | holds |
//! |---|---|
//! | [`filters`] | the filters that are measured |
//! | [`packets`] | packets of which they accept all, half or none |
//! | [`native`] | the filters in C |
//! | [`kernel`] | the filters in the kernel |
//! | [`timing`] | rounds, turns, medians |
//! | [`points`] | what is measured of a filter |
//! | [`asked`] | hosts at a hook; machine code against libpcap's interpreter |
//! | [`document`] | the figures as tables |
//! | [`plots`] | the figures as plots |

pub mod asked;
pub mod document;
pub mod filters;
pub mod kernel;
pub mod native;
pub mod packets;
pub mod plots;
pub mod points;
pub mod timing;
