"""Gates on what the samples are: token ids, lengths, masks, repeats, vocabulary."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import PairBatch
from logdiff.measure.gates.gate import Exclusion, Gate, counted, name_of, row_of

_SIDE_COLUMNS = {"rollout": 2, "train": 3, "rescore": 4}


class Ids:
    """The ids that the trainer scored are prompt + response, id by id."""

    def __init__(self) -> None:
        self._given = self._different = self._samples = 0
        self._first = ""
        self._at: dict[str, list[int]] = {}

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch."""
        self._samples += batch.samples
        for row, scored in enumerate(batch.train_ids):
            if scored is None:
                continue
            self._given += 1
            prompt = batch.prompt_ids[batch.prompt_offsets[row] : batch.prompt_offsets[row + 1]]
            sampled = np.concatenate([prompt, batch.token_ids[batch.offsets[row] : batch.offsets[row + 1]]])
            if np.array_equal(sampled, scored):
                continue
            self._different += 1
            out.sample[row] = True
            self._note(sampled, scored, len(prompt))
            self._first = self._first or f"{name_of(batch, row)}: {_first_difference(sampled, scored, len(prompt))}"

    def _note(self, sampled: npt.NDArray[np.int64], scored: npt.NDArray[np.int64], prompt: int) -> None:
        """[least, most] over the samples that differ: where the first other id stands, and the change of length."""
        at = _differs_at(sampled, scored)
        values = {"first_at": at, "before_response": prompt - at, "length_change": len(scored) - len(sampled)}
        for name, value in values.items():
            least, most = self._at.get(name, [value, value])
            self._at[name] = [min(least, value), max(most, value)]

    def result(self) -> Gate:
        """The gate after the last batch."""
        if not self._given:
            return Gate("ids", None, "not measured: the input holds no ids of the trainer (train_token_ids)")
        if self._different:
            text = f"{self._different} of {counted(self._given, 'sample')} were scored on other ids; {self._first}"
            return Gate("ids", False, text, {"different": self._different, "given": self._given, **self._at})
        text = f"equal in {counted(self._given, 'sample')}"
        if self._given < self._samples:
            text += f"; {self._samples - self._given} carry no ids of the trainer"
        return Gate("ids", True, text)


def _differs_at(sampled: npt.NDArray[np.int64], scored: npt.NDArray[np.int64]) -> int:
    """Position of the first other id; the common length where one is the other's beginning."""
    common = min(len(sampled), len(scored))
    differs = np.flatnonzero(sampled[:common] != scored[:common])
    return int(differs[0]) if len(differs) else common


def _first_difference(sampled: npt.NDArray[np.int64], scored: npt.NDArray[np.int64], prompt: int) -> str:
    common = min(len(sampled), len(scored))
    differs = np.flatnonzero(sampled[:common] != scored[:common])
    lengths = f"{len(sampled)} ids sampled, {len(scored)} scored" if len(sampled) != len(scored) else ""
    if not len(differs):
        return lengths
    at = int(differs[0])
    where = f"prompt position {at}" if at < prompt else f"response position {at - prompt}"
    first = f"first difference at {where}: sampled {int(sampled[at])}, scored {int(scored[at])}"
    return f"{first} ({lengths})" if lengths else first


class Lengths:
    """Every list of log-probabilities has one entry per response token."""

    def __init__(self) -> None:
        self._wrong = self._samples = 0
        self._first = ""

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch."""
        self._samples += batch.samples
        expected = np.where(batch.lengths[:, 0] >= 0, batch.lengths[:, 0], np.diff(batch.offsets))
        found = {}
        for side, column in _SIDE_COLUMNS.items():
            given = batch.lengths[:, column]
            found[side] = (given >= 0) & (given != expected)
            out.side[side][:] |= found[side]
        wrong = np.logical_or.reduce(list(found.values()))
        self._wrong += int(np.count_nonzero(wrong))
        if wrong.any() and not self._first:
            row = int(np.argmax(wrong))
            side = next(side for side, flags in found.items() if flags[row])
            given = batch.lengths[row, _SIDE_COLUMNS[side]]
            self._first = f"{name_of(batch, row)}: {expected[row]} response tokens, {given} on {side}"

    def result(self) -> Gate:
        """The gate after the last batch."""
        if self._wrong:
            text = f"{self._wrong} of {counted(self._samples, 'sample')} with unequal lengths; {self._first}"
            return Gate("lengths", False, text, {"wrong": self._wrong})
        if not self._samples:
            return Gate("lengths", False, "no sample")
        return Gate("lengths", True, f"equal in {counted(self._samples, 'sample')}")


class Masks:
    """The mask covers the response, and leaves something to compare."""

    def __init__(self) -> None:
        self._samples = self._wrong = self.empty = self.masked = 0
        self._first = ""

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch."""
        self._samples += batch.samples
        lengths = np.diff(batch.offsets)
        expected = np.where(batch.lengths[:, 0] >= 0, batch.lengths[:, 0], lengths)
        given = batch.lengths[:, 1]
        wrong = (given >= 0) & (given != expected)
        out.sample[:] |= wrong
        if wrong.any():
            self._wrong += int(np.count_nonzero(wrong))
            row = int(np.argmax(wrong))
            what = f"{name_of(batch, row)}: {expected[row]} response tokens, a mask of {given[row]}"
            self._first = self._first or what
        active = np.add.reduceat(np.append(batch.mask, False), batch.offsets[:-1], dtype=np.int64)
        self.empty += int(np.count_nonzero(lengths == 0))
        self.masked += int(np.count_nonzero((lengths > 0) & (active == 0)))

    def result(self) -> Gate:
        """The gate after the last batch."""
        left_out = self.empty + self.masked
        data = {"empty": self.empty, "masked": self.masked, "wrong_length": self._wrong}
        if self._wrong:
            text = f"{counted(self._wrong, 'sample')} with a mask of the wrong length; {self._first}"
            return Gate("masks", False, text, data)
        if left_out == self._samples:
            return Gate("masks", False, f"no token to compare: {self.masked} masked, {self.empty} empty samples", data)
        if left_out:
            text = f"{self.masked} masked and {self.empty} empty of {counted(self._samples, 'sample')} left out"
            return Gate("masks", True, text, data)
        return Gate("masks", True, f"{counted(self._samples, 'sample')} with at least one token under the mask")


class Duplicates:
    """No (sample_id, step, rank) comes twice; only the first of a kind is measured.

    Keys are kept as 16-byte digests in sorted arrays of doubling size: 16 to 32 bytes per sample.
    """

    def __init__(self) -> None:
        self._sorted: list[npt.NDArray[np.bytes_]] = []
        self._samples = self._repeated = 0
        self._first = ""

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch."""
        if not batch.samples:
            return
        self._samples += batch.samples
        keys = np.array(
            [
                hashlib.blake2b(f"{step}/{rank}/{name}".encode(errors="surrogatepass"), digest_size=16).digest()
                for name, step, rank in zip(batch.sample_id, batch.step.tolist(), batch.rank.tolist(), strict=True)
            ],
            dtype="S16",
        )
        fresh, first, where_fresh = np.unique(keys, return_index=True, return_inverse=True)
        seen = np.zeros(len(fresh), dtype=bool)
        for known in self._sorted:
            where = np.minimum(np.searchsorted(known, fresh), len(known) - 1)
            seen |= known[where] == fresh
        repeated = np.ones(len(keys), dtype=bool)
        repeated[first] = False
        repeated |= seen[where_fresh]
        if repeated.any():
            self._repeated += int(np.count_nonzero(repeated))
            self._first = self._first or name_of(batch, int(np.argmax(repeated)))
            out.sample[:] |= repeated
        self._remember(fresh)

    def _remember(self, keys: npt.NDArray[np.bytes_]) -> None:
        while self._sorted and len(self._sorted[-1]) <= 2 * len(keys):
            keys = np.unique(np.concatenate([self._sorted.pop(), keys]))
        self._sorted.append(keys)

    def result(self) -> Gate:
        """The gate after the last batch."""
        if self._repeated:
            text = f"{counted(self._repeated, 'sample')} repeat an earlier (sample_id, step, rank), first {self._first}"
            return Gate("duplicates", False, text, {"repeated": self._repeated})
        return Gate("duplicates", True, f"{counted(self._samples, 'sample')}, all distinct")


class Vocabulary:
    """Ids lie inside the vocabulary, and sampled ones inside the tokenizer."""

    def __init__(self, vocab_size: int | None, tokenizer_size: int | None) -> None:
        self._vocab, self._tokenizer = vocab_size, tokenizer_size
        self._outside = self._padded = self._padded_prompt = self._seen = 0
        self._first = self._first_padded = ""

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch."""
        firsts: list[tuple[int, str]] = []
        for prompt, ids, offsets in (
            (True, batch.prompt_ids, batch.prompt_offsets),
            (False, batch.token_ids, batch.offsets),
        ):
            if not len(ids):
                continue
            self._seen += len(ids)
            low, high = int(ids.min()), int(ids.max())
            top = self._vocab if self._vocab is not None else high + 1
            if low < 0 or high >= top:
                outside = np.flatnonzero((ids < 0) | (ids >= top))
                self._outside += len(outside)
                rows = np.searchsorted(offsets, outside, side="right") - 1
                out.sample[rows] = True
                at, row = int(outside[0]), int(rows[0])
                kind = "prompt" if prompt else "response"
                where = f"{name_of(batch, row)}, {kind} position {at - int(offsets[row])}: id {int(ids[at])}"
                firsts.append((row, where))
            if self._tokenizer is not None and high >= self._tokenizer:
                self._see_padded(batch, prompt, ids, (self._tokenizer, top))
        if firsts:
            self._first = self._first or min(firsts, key=lambda first: first[0])[1]

    def _see_padded(self, batch: PairBatch, prompt: bool, ids: npt.NDArray[np.int64], span: tuple[int, int]) -> None:
        padded = (ids >= span[0]) & (ids < span[1])
        if prompt:
            self._padded_prompt += int(np.count_nonzero(padded))
            return
        places = np.flatnonzero(padded & batch.mask)
        self._padded += len(places)
        if len(places) and not self._first_padded:
            row, position = row_of(batch, int(places[0]))
            self._first_padded = f"{name_of(batch, row)}, response position {position}: id {int(ids[places[0]])}"

    def result(self) -> Gate:
        """The gate after the last batch."""
        data = {"outside": self._outside, "padded_sampled": self._padded, "padded_prompt": self._padded_prompt}
        known = f"vocab_size {self._vocab}" if self._vocab is not None else "vocab_size unknown"
        faults = []
        if self._outside:
            faults.append(f"{counted(self._outside, 'id')} outside the vocabulary ({known}), first {self._first}")
        if self._padded:
            faults.append(
                f"{counted(self._padded, 'sampled id')} beyond the tokenizer ({self._tokenizer} ids) but inside the "
                f"vocabulary ({known}), first {self._first_padded}"
            )
        if faults:
            return Gate("vocabulary", False, "; ".join(faults), data)
        if self._vocab is None:
            return Gate("vocabulary", None, "no negative id; the upper end was not checked: vocab_size is unknown")
        text = f"{counted(self._seen, 'id')} in [0, {self._vocab})"
        if self._padded_prompt:
            text += f"; {self._padded_prompt} prompt ids lie beyond the tokenizer ({self._tokenizer} ids)"
        return Gate("vocabulary", True, text, data if self._padded_prompt else {})
