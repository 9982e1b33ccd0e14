"""The sentences that a run's previews speak where its run file names none: three in every language that can be read."""

from __future__ import annotations

from collections.abc import Sequence

_TEXTS: dict[str, tuple[str, ...]] = {
    "de": (
        "Die alte Uhr im Flur schlug neun, als wir uns setzten.",
        "Bring bitte einen warmen Mantel mit, am Fluss weht ein kalter Wind.",
        "Wie viele Stimmen hörst du in diesem kurzen Lied?",
    ),
    "en": (
        "The old clock in the hall struck nine as we sat down.",
        "Please bring a warm coat, for the wind is cold by the river.",
        "How many voices can you hear in this short song?",
    ),
    "es": (
        "El viejo reloj del pasillo dio las nueve cuando nos sentamos.",
        "Trae un abrigo, porque el viento es frío junto al río.",
        "¿Cuántas voces oyes en esta canción tan corta?",
    ),
    "fr": (
        "La vieille horloge sonna neuf heures quand nous étions à table.",
        "Prends un manteau chaud, car le vent est froid près de la rivière.",
        "Combien de voix entends-tu dans cette courte chanson ?",
    ),
    "it": (
        "Il vecchio orologio suonò le nove quando ci sedemmo.",
        "Porta un cappotto caldo, perché il vento è freddo vicino al fiume.",
        "Quante voci senti in questa breve canzone?",
    ),
    "ja": (
        "古い時計が九時を打ちました。",
        "川のそばは風が冷たいので、上着を持ってきてください。",
        "この短い歌の中に、いくつの声が聞こえますか。",
    ),
    "ru": (
        "Старые часы пробили девять, когда мы сели за стол.",
        "Возьми тёплое пальто, у реки дует холодный ветер.",
        "Сколько голосов ты слышишь в этой короткой песне?",
    ),
}


def preview_texts(language: str) -> Sequence[str]:
    """The built-in sentences of a language tag, whatever its region; none for a language without."""
    return _TEXTS.get(language.partition("-")[0].lower(), ())
