"""The figures of *Scan and Snap* (Tian et al., NeurIPS 2023), made anew and compared."""

from scan_snap_ode.paper.attention_maps import AdamMaps, AttentionMaps
from scan_snap_ode.paper.closed_forms import AttentionGrowth, DecoderHeight, GrowthFactor
from scan_snap_ode.paper.figure import Agreement, PaperFigure, Reproduction, reproduce
from scan_snap_ode.paper.rate_ratios import RateRatio, RecallLarge, RecallSmall
from scan_snap_ode.paper.text import TextAttention, TextEntropy

FIGURES: dict[int, type[PaperFigure]] = {
    kind.number: kind
    for kind in (
        GrowthFactor,
        AttentionMaps,
        AdamMaps,
        RateRatio,
        TextAttention,
        DecoderHeight,
        AttentionGrowth,
        TextEntropy,
        RecallSmall,
        RecallLarge,
    )
}

__all__ = ["FIGURES", "Agreement", "PaperFigure", "Reproduction", "reproduce"]
