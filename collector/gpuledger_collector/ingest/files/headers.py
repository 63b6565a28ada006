"""What the columns of a table of jobs mean, by the names that schedulers and people give them."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.config.files import MAX_COLUMNS, MAX_ROW_CHARACTERS
from gpuledger_collector.ingest.files.held_time import DURATIONS
from gpuledger_collector.ingest.files.instants import is_instant

SYNONYMS = {
    "workload_id": (
        "workload workload_uid workload_uuid job_id jobid jobidraw job job_number job_no task_id"
        " run_id pod pod_name pod_uid id auftrag auftrags_id auftragsid auftragsnummer auftrags_nr"
        " auftragsnr jobnummer job_nummer job_nr jobnr tache id_tache travail id_travail trabajo"
        " id_trabajo tarea id_tarea lavoro id_lavoro id_job"
    ),
    "start": (
        "start_time started started_at start_at start_ts start_date begin begin_time begin_at began"
        " from start_datetime start_timestamp job_start beginn anfang startzeit startzeitpunkt"
        " startdatum gestartet gestartet_am von debut date_debut date_de_debut heure_debut"
        " heure_de_debut inicio fecha_inicio fecha_de_inicio hora_inicio hora_de_inicio desde"
        " inizio data_inizio ora_inizio"
    ),
    "end": (
        "end_time ended ended_at end_at end_ts end_date finish finish_time finished finished_at"
        " completed_at completion_time stop stop_time stopped_at to until end_datetime"
        " end_timestamp job_end ende endzeit endzeitpunkt enddatum schluss beendet beendet_am bis"
        " fin date_fin date_de_fin heure_fin heure_de_fin fecha_fin fecha_de_fin hora_fin"
        " hora_de_fin hasta fine data_fine ora_fine"
    ),
    "gpus": (
        "gpu gpu_s num_gpus num_gpu n_gpus ngpus gpu_count gpus_count gpu_num gpus_allocated"
        " allocated_gpus alloc_gpus number_of_gpus alloctres alloc_tres anzahl_gpus anzahl_gpu"
        " anzahl_der_gpus gpu_anzahl gpus_anzahl nombre_gpu nombre_gpus nombre_de_gpu"
        " nombre_de_gpus nb_gpu nb_gpus numero_gpu numero_gpus numero_de_gpu numero_de_gpus"
        " numero_di_gpu cantidad_gpu cantidad_gpus cantidad_de_gpus"
    ),
    "gpu_model": (
        "gpu_type gpu_name gpu_kind accelerator accelerator_type gpu_typ gputyp gpu_modell gpu_art"
        " grafikkarte type_gpu type_de_gpu modele_gpu modele_de_gpu tipo_gpu tipo_de_gpu"
        " tipo_di_gpu modelo_gpu modelo_de_gpu modello_gpu"
    ),
    "pool": "partition queue warteschlange file_d_attente cola coda",
    "node": (
        "nodelist node_list node_name nodename host hostname knoten knotenname rechner noeud nodo"
    ),
    "user": (
        "user_name username uid_name submitted_by benutzer benutzername nutzer nutzername anwender "
        "utilisateur nom_utilisateur usuario utente"
    ),
    "account": "account_name konto compte cuenta",
    "job_name": "jobname name auftragsname",
    "submitted": (
        "submit submit_time submitted_at submission_time queued_at eingereicht eingereicht_am"
        " soumis"
    ),
    "state": "status job_state final_state zustand etat estado stato",
    "duration": (
        "elapsed elapsed_time run_time runtime wall_time walltime wallclock dauer laufzeit duree "
        "duracion durata"
    ),
    "duration_hours": (
        "hours duration_h elapsed_hours runtime_hours wall_hours stunden dauer_h dauer_stunden "
        "laufzeit_h laufzeit_stunden heures horas ore"
    ),
    "duration_minutes": (
        "minutes duration_min elapsed_minutes runtime_minutes minuten dauer_min laufzeit_min "
        "minutos minuti"
    ),
    "duration_seconds": (
        "seconds duration_s duration_sec elapsedraw elapsed_seconds runtime_seconds sekunden "
        "secondes segundos secondi"
    ),
    "suspended": "suspended_time suspend_time",
    "tag:org": "org organization organisation",
    "tag:team": (
        "team team_name department dept abteilung arbeitsgruppe equipe equipo squadra departement"
        " departamento dipartimento reparto institut institute lehrstuhl fakultat fakultaet faculty"
        " research_group forschungsgruppe instituto facultad istituto facolta faculte"
    ),
    "tag:project": "project project_name projekt projet proyecto progetto",
    "tag:experiment": "experiment experiment_name",
    "tag:run": "run run_name",
    "tag:namespace": "namespace namespace_name pod_namespace kube_namespace",
}
"""Other names of the columns, in lower case with underscores and without accents: English, German,
French, Spanish, Italian.
"""
ONLY_CHOSEN = frozenset({"queue"})
"""Meanings that `--column` alone gives: a column called queue is that of Slurm, a partition."""
DELIMITERS = ",;\t|"
TAG = "tag:"
TEAM, NAMESPACE = "tag:team", "tag:namespace"
SACCT_COLUMNS = (
    "jobidraw,cluster,account,user,partition,qos,state,submit,eligible,start,end,elapsedraw,suspended,alloctres,"
    "nodelist,comment,wckey,jobname"
)
SACCT = (
    "TZ=UTC SLURM_TIME_FORMAT=%s sacct -X -a -P -n -D -S 2026-10-01 -E 2026-11-01 -o"
    f" {SACCT_COLUMNS} > jobs.txt"
)
_TRES = re.compile(r"(cpu|mem|node|billing)=[^,]+,|gres/", re.ASCII)
"""What begins as a column AllocTRES does."""
_OF_SACCT = {"jobid", "jobname", "partition", "account", "alloccpus", "state", "exitcode"}
"""Words of the header that sacct prints by default."""
_LISTED = 100
"""Names of columns that a sentence lists."""
_NEEDED_OF_SACCT = {"start": "Start", "end": "End", "gpus": "AllocTRES"}
"""What the header needs besides, by the names of sacct."""


@dataclass(frozen=True)
class TableOptions:
    """What a person says about a table that it does not say itself.

    `columns`: meaning -> header name, against the synonyms; `zone`: of times without one;
    `day_first`: how to read 03/04/2026; `sheet`: which one of a workbook, None for the first.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    zone: str | None = None
    day_first: bool | None = None
    sheet: str | None = None


def delimiter_of(text: str) -> str:
    """The delimiter by which the first line names most known columns, then most columns."""
    start = next((at for at, letter in enumerate(text) if letter not in "\r\n"), len(text))
    first = text[start : start + MAX_ROW_CHARACTERS].partition("\n")[0]

    def score(delimiter: str) -> tuple[int, int]:
        names = next(csv.reader(io.StringIO(first), delimiter=delimiter), [])
        known = sum(_meaning(name, SYNONYMS) is not None for name in names[:MAX_COLUMNS])
        return known, len(names)

    return max(DELIMITERS, key=score)


def _word(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name.strip().casefold().replace("œ", "oe"))
    letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", "_", letters).strip("_").replace("date_time", "datetime")


def _meaning(name: str, known: Sequence[str] | Mapping[str, str]) -> str | None:
    """What a column means by its name alone."""
    stripped = name.strip()
    if stripped in known or (stripped.startswith(TAG) and stripped != TAG):
        return stripped
    word = _word(name)
    if word in known:
        return word
    return next((meaning for meaning, words in SYNONYMS.items() if word in words.split()), None)


def column_meanings(
    path: Path,
    header: Sequence[str],
    known: Sequence[str],
    options: TableOptions,
    problems: list[Problem],
) -> dict[str, str | None]:
    """Header name -> meaning, None for what is ignored; adds what can be read in two ways and bad
    options.
    """
    chosen = {name: meaning for meaning, name in options.columns.items()}
    for meaning, name in options.columns.items():
        if meaning not in known and not meaning.startswith(TAG):
            problems.append(
                Problem(
                    "no_column", "--column", f"{meaning!r} is none of {', '.join(known)}, {TAG}NAME"
                )
            )
        if name not in header:
            problems.append(
                Problem(
                    "no_column",
                    f"{path}:1:{name}",
                    f"is no column; there are {_list_names(header)}",
                )
            )
    by_names = [meaning for meaning in known if meaning not in ONLY_CHOSEN]
    columns: dict[str, str | None] = {}
    for name in header:
        by_name = _meaning(name, by_names)
        # What an option gives to one column is no other's.
        columns[name] = chosen.get(name) or (None if by_name in options.columns else by_name)
    for meaning in sorted(filter(None, set(columns.values()))):
        names = [name for name in header if columns[name] == meaning]
        # Beside JobID, Slurm's JobIDRaw is another name of the same jobs.
        raw = [
            name for name in names if any(_word(name) == f"{_word(other)}raw" for other in names)
        ]
        columns |= dict.fromkeys(raw)
        names = [name for name in names if name not in raw]
        exact = [name for name in names if name == meaning]
        exact = exact or [name for name in names if _word(name) == meaning.removeprefix(TAG)]
        if len(names) > 1 and len(exact) != 1:
            message = (
                f"columns {_list_names(names)} all mean {meaning}; --column {meaning}={names[0]} takes"
                " the first"
            )
            problems.append(Problem("two_readings", f"{path}:1", message))
        elif len(names) > 1:
            columns |= {name: None for name in names if name != exact[0]}
    return _settle_columns(columns, set(options.columns))


def _settle_columns(
    columns: Mapping[str, str | None], chosen: Container[str]
) -> dict[str, str | None]:
    """Without all durations but the first; a namespace is the team where nothing else is.

    An end and a duration that stand side by side are compared, unless one of them was chosen.
    """
    taken = set(columns.values())
    lengths = sorted(
        (meaning for meaning in DURATIONS if meaning in taken), key=lambda name: name not in chosen
    )
    dropped = set(DURATIONS) - {*lengths[:1]}
    if "end" in chosen:
        dropped = set(DURATIONS)
    elif lengths and lengths[0] in chosen:
        dropped.add("end")
    settled = {name: None if meaning in dropped else meaning for name, meaning in columns.items()}
    if TEAM not in taken:
        settled = {
            name: TEAM if meaning == NAMESPACE else meaning for name, meaning in settled.items()
        }
    return settled


def account_column(columns: Mapping[str, str | None]) -> str | None:
    """The column of Slurm's accounts, which are teams where no column is; None in other tables."""
    names = {meaning: name for name, meaning in columns.items() if meaning is not None}
    return names.get("account") if is_alloc_tres(names["gpus"]) and TEAM not in names else None


def is_alloc_tres(name: str) -> bool:
    """Whether a column holds what Slurm allocated, GPUs among it."""
    return _word(name) in {"alloctres", "alloc_tres"}


def namespace_column(columns: Mapping[str, str | None]) -> str | None:
    """The column of namespaces; None where ids are unique without them."""
    id_column = next(name for name, meaning in columns.items() if meaning == "workload_id")
    if _word(id_column).endswith("id") and id_column != "workload_id":
        return None
    words = {*SYNONYMS[NAMESPACE].split(), NAMESPACE}
    return next(
        (name for name, meaning in columns.items() if meaning and {_word(name), name} & words), None
    )


def ignored_notes(columns: Mapping[str, str | None]) -> Iterator[tuple[str, str | None]]:
    """Each column that means nothing, with the sentence that gives it the meaning that its name
    resembles, if any.
    """
    taken = set(columns.values())
    free = [meaning for meaning in SYNONYMS if meaning not in taken and meaning not in DURATIONS]
    for name, meaning in columns.items():
        if name and meaning is None:
            likely = next((known for known in free if _resembles(_word(name), known)), None)
            option = quote(f"{likely}={name}")
            yield (
                name,
                likely and f"column {name!r} is ignored; it looks like {likely}: --column {option}",
            )


def _resembles(word: str, meaning: str) -> bool:
    """Whether a name is nearly a known one, or has one among its words."""
    known = [meaning.removeprefix(TAG), *SYNONYMS[meaning].split()]
    return bool(
        get_close_matches(word, known, 1, 0.84)
        or {part for part in word.split("_") if part in known}
    )


def no_team_note(columns: Mapping[str, str | None]) -> str:
    """The sentence for a table in which no column says who pays, with the column that most likely
    does.
    """
    accounts = (name for name, meaning in columns.items() if meaning == "account")
    name = next(accounts, None) or guesses(columns, [TEAM])[TEAM] or "NAME"
    return f"no column is the team: --column {quote(f'{TEAM}={name}')} names it"


def guesses(columns: Mapping[str, str | None], missing: Sequence[str]) -> dict[str, str | None]:
    """The column that most likely has each of these meanings; None where none looks like it."""
    unused = [name for name, meaning in columns.items() if name and meaning is None]
    found: dict[str, str | None] = {}
    for meaning in missing:
        found[meaning] = _nearest(meaning, [name for name in unused if name not in found.values()])
    return found


def header_problem(
    path: Path, header: Sequence[str], columns: Mapping[str, str | None], missing: Sequence[str]
) -> Problem:
    """What a header needs that lacks columns: the one sentence that helps most; `no_header` where
    it is none.
    """
    if any(map(_TRES.match, header)):
        return _no_header_of_sacct(path, header)
    if any(map(is_instant, header)):
        return _no_header(path, header)
    return _of_sacct(path, header, missing) or _missing(path, header, columns, missing)


def _no_header_of_sacct(path: Path, header: Sequence[str]) -> Problem:
    names = SACCT_COLUMNS.split(",")
    if len(header) >= len(names) and _TRES.match(header[names.index("alloctres")]):
        message = (
            f"this is what sacct prints for `gpuledger import sacct`; `gpuledger start {path}`"
            " reads it as well"
        )
    else:
        message = (
            "this is what sacct prints with -n, without the names of its columns; print it without"
            f" -n, then `gpuledger start {path}` reads it"
        )
    return Problem("no_header", f"{path}:1", message)


def _no_header(path: Path, header: Sequence[str]) -> Problem:
    message = (
        f"the first line is a row and names no columns ({_list_names(header)}); put their names before"
        " it, such as job_id,gpus,start,end,team"
    )
    return Problem("no_header", f"{path}:1", message)


def _of_sacct(path: Path, header: Sequence[str], missing: Sequence[str]) -> Problem | None:
    """The problem of what sacct prints without being told all the columns that are needed."""
    words = {word for name in header for word in name.casefold().split()}
    if not ({"jobid", "jobidraw"} & words and len(_OF_SACCT & words) > len(_OF_SACCT) // 2):
        return None
    # Without -P the columns are separated by blanks, and all of them are one name.
    needed = (name for meaning, name in _NEEDED_OF_SACCT.items() if meaning in missing)
    lacking = [name for name in needed if name.casefold() not in words]
    if len(lacking) == len(_NEEDED_OF_SACCT):
        lacks = "by default, without start, end and GPUs"
    else:
        lacks = f"without {' and '.join(lacking) or '-P'}"
    message = f"this is what sacct prints {lacks}; print it with: {SACCT}"
    return Problem("no_column", f"{path}:1", message)


def _missing(
    path: Path, header: Sequence[str], columns: Mapping[str, str | None], missing: Sequence[str]
) -> Problem:
    if not any(columns.get(name) for name in header):
        message = f"the first line names no column that is known; it has {_list_names(header)}"
    else:
        message = f"no column is known as {' or '.join(missing)}; there are {_list_names(header)}"
    found = guesses(columns, missing)
    options = (f"{meaning}={name or 'NAME'}" for meaning, name in found.items())
    cure = " ".join(f"--column {quote(option)}" for option in options)
    return Problem("no_column", f"{path}:1", f"{message}; {cure} says which it is")


def _nearest(meaning: str, unused: Sequence[str]) -> str | None:
    """The column that most likely has this meaning."""
    words = {_word(name): name for name in unused}
    for known in (meaning, *SYNONYMS[meaning].split()):
        within = next(
            (name for word, name in words.items() if len(known) > 2 and known in word), None
        )
        if near := get_close_matches(known, words, 1, 0.7):
            return words[near[0]]
        if within is not None:
            return within
    return None


def _list_names(names: Sequence[str]) -> str:
    left = len(names) - _LISTED
    shown = ", ".join(repr(name) for name in names[:_LISTED])
    return f"{shown} and {left} more" if left > 0 else shown
