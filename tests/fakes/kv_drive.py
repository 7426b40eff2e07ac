"""vLLM's scheduler with harvester's plan and checkpoints, a real copier, and in place of a model the bytes that one would write and read.

The KV of a token is a hash of all tokens before it. Before a request's step is "computed", every byte of KV it would read is compared with
what it must be: reading wrong KV fails there, not in some later token. No engine is started, so that thousands of requests take seconds.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fakes.lagging_device import LaggingDevice

BLOCK = 16
SLOTS = 8
PAGE_BYTES = BLOCK * 8  # one hash of 8 bytes a token
COPY_S = 5e-6  # of a block


class KvDrive:
    """``chances``: probability of each event before or in a step: preempt, cancel, end, spoil, reset. ``depth``: steps in flight at once.

    ``device``: computes the steps and copies, as a GPU does; without one a thread copies.
    """

    def __init__(
        self,
        model: Path,
        blocks: int,
        host_blocks: int,
        seed: int = 0,
        depth: int = 1,
        device: LaggingDevice | None = None,
        **chances: float,
    ) -> None:
        from bench.harness.engine.drive import Drive
        from harvester.engine.checkpoints.budget import transfer_config
        from harvester.engine.checkpoints.worker.room import GIB
        from harvester.engine.shared.state import Field, SharedState
        from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler
        from harvester.model_config import CheckpointConfig

        self.shared = SharedState.make()
        self.shared[Field.PLACES] = 4
        checkpoint = CheckpointConfig(enabled=True, host_gib=host_blocks * 4096 / GIB, verify=True)
        sections = {
            "share": {"reserved_slots": 1, "reserved_kv": 0.0},
            "schedule": {"reserve": "fixed"},
            "shared_state": str(self.shared.path),
            "checkpoint": checkpoint.model_dump(),
        }
        kind = AsyncHarvestScheduler if depth > 1 else HarvestScheduler
        transfer = transfer_config(checkpoint, 1)
        self._drive = Drive(model, kind, blocks, SLOTS, BLOCK, sections, model_tokens=512, step_tokens=256, transfer=transfer)
        self.scheduler = self._drive.scheduler
        self.planner = self.scheduler.connector.planner
        self.device = device
        self._connect(self._drive.config, self._drive.kv_cache, blocks)
        self.rng, self.chances = random.Random(seed), chances
        self.live: dict[str, Any] = {}
        self.finished = self.cancelled = self.ended = self.read = self.resets = self.steps = 0
        self.preempted: dict[str, int] = {}
        self._hashes: dict[str, list[int]] = {}
        self._tables: dict[str, list[int]] = {}
        self._tokens: dict[str, list[int]] = {}  # of each request, as the worker knows them
        self._depth, self._flight = depth, deque[tuple[Any, Any, Any]]()
        self._void_epoch: int | None = None
        self._serial = 0
        self._in_step = False
        self.now_s: Callable[[], float] = time.monotonic  # the scheduler's clock

    def in_step(self, patch: Any, step_s: float) -> None:
        """From now on a step takes ``step_s`` of the scheduler's clock, and the thread has copied what it may before the step ends.

        A copy takes `COPY_S`, however busy the machine is.
        """
        import harvester.engine.checkpoints.worker.copier as copier
        import harvester.engine.vllm.core.scheduler as scheduler

        began_s, ticks = time.monotonic(), count()
        self.now_s = lambda: began_s + self.steps * step_s
        patch.setattr(scheduler, "time", SimpleNamespace(monotonic=self.now_s, time=time.time))
        patch.setattr(copier, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * COPY_S))
        self._in_step = True

    def happened(self) -> dict[str, int]:
        """How often each event took effect, by the name of its chance; "read back": KV blocks."""
        from harvester.engine.shared.state import Count

        return {
            "preempt": sum(self.preempted.values()),
            "cancel": self.cancelled,
            "end": self.ended,
            "spoil": int(self.shared.count(Count.FAILED_COPIES)),
            "reset": self.resets,
            "read back": int(self.shared.count(Count.LOADED_BLOCKS)),
        }

    def _connect(self, config: Any, cache: Any, blocks: int) -> None:
        import torch
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

        from harvester.engine.checkpoints.worker.copies import CopyWorker
        from harvester.engine.checkpoints.worker.devicecopier import DeviceCopier
        from harvester.engine.checkpoints.worker.layout import in_a_row
        from harvester.engine.vllm.connector import CheckpointConnector

        self.worker = CheckpointConnector(config, KVConnectorRole.WORKER, cache)
        bytes_ = torch.zeros((blocks, PAGE_BYTES), dtype=torch.int8)
        self.kv = bytes_.numpy().view("uint64")  # [blocks, BLOCK]
        self.worker.register_kv_caches({"layer": bytes_.view(torch.float32)})
        assert self.worker.copies is not None
        if self.device is not None:
            self.worker.copies.shutdown()
            slots = self.planner.pool.capacity
            copier = DeviceCopier(in_a_row([bytes_]), slots, self.device, True, piece_bytes=16 * PAGE_BYTES, ahead=False)
            self.worker.copies = CopyWorker(copier)
        self.copier: Any = self.worker.copies.copier  # of either kind

    def close(self) -> None:
        self.copier.shutdown()
        self.shared.remove()

    def add(self, prompt: list[int], max_tokens: int, *, offline: bool, job: str = "") -> str:
        self._serial += 1
        name = f"r{self._serial}"
        request = self._drive.asked(name, prompt, max_tokens, offline=offline, job=job)
        self.live[name], self._hashes[name], self.preempted[name] = request, [], 0
        self.scheduler.add_request(request)
        return name

    def cancel(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.cancelled += 1
        self._gone(name)

    def _happens(self, event: str) -> bool:
        return self.rng.random() < self.chances.get(event, 0.0)

    def step(self) -> None:
        for request in list(self.scheduler.running):
            if self._happens("preempt"):
                self.scheduler.running.remove(request)
                self.scheduler._preempt_request(request, 0.0)
        for name in list(self.live):
            if self._happens("cancel"):
                self.cancel(name)
        if self._happens("spoil"):
            self._spoil()
        if self._happens("reset"):
            with suppress(RuntimeError):  # KV on its way back still has its blocks: vLLM refuses, having preempted everything
                self.resets += self.scheduler.reset_prefix_cache(reset_running_requests=self.rng.random() < 0.5)
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            result, computed = self._compute(output)
            self.scheduler.get_grammar_bitmask(output)  # as the engine does when the workers have the step
            self._flight.append((output, result, computed))
        if self._flight and (
            len(self._flight) == self._depth or not self._flight[-1][0].num_scheduled_tokens or not self.scheduler.has_requests()
        ):
            self._answer()
        self.planner.pool.check()
        self.steps += 1

    def _answer(self) -> None:
        """The oldest step in flight is answered when the device has computed it; what is copied beside it may take longer."""
        output, result, computed = self._flight.popleft()
        if self.device is not None:
            self.device.finish_steps(computed)
            self.device.advance(self.rng.randrange(30))
        for outputs in self.scheduler.update_from_output(output, result).values():
            for item in outputs.outputs:
                if item.finished and item.request_id in self.live:
                    self.finished += 1
                    self._gone(item.request_id)

    def _spoil(self) -> None:
        if self.device is None:
            self.copier.host[self.rng.randrange(len(self.copier.host)), self.rng.randrange(PAGE_BYTES)] ^= 1
        elif self.copier.memory.ready(slot := self.rng.randrange(self.planner.pool.capacity)):
            self.copier.memory.row(slot)[self.rng.randrange(PAGE_BYTES)] ^= 1

    def _gone(self, name: str) -> None:
        self.preempted[name] = self.live.pop(name).num_preemptions
        self._hashes.pop(name, None)

    def _compute(self, output: Any) -> tuple[Any, Any]:
        """Do as the worker does. Returns the answer, and the mark in the device's queue at which the step is computed."""
        from vllm.v1.outputs import ModelRunnerOutput

        from harvester.engine.shared.steporder import ENDED_EARLY, ORDER

        meta = output.kv_connector_metadata
        self.worker.handle_preemptions(meta)
        self.worker.bind_connector_metadata(meta)
        self._take_tables(output)
        names, order = list(output.num_scheduled_tokens), getattr(output, ORDER, None)
        void = order is not None and order.epoch == self._void_epoch
        ends = order is not None and order.every and not void and self._happens("end")
        count = 0 if void else self.rng.randrange(len(names)) if ends else len(names)
        for name in names[:count]:  # the layers before the end of a step write what they write
            self._forward(name, output.num_scheduled_tokens[name], garbage=bool(ends))
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        computed = None
        if self.device is not None:
            computed = self.device.mark()
            if ends:  # it has ended when the device has drained
                self.device.finish_steps()
        while self._in_step and self._copies():
            time.sleep(0)
        self.worker.get_transfer_results(output.finished_req_ids)
        self.worker.build_connector_worker_meta()
        self.worker.clear_connector_metadata()
        tokens = [] if ends or void else [self._sampled(name) for name in names]
        places = {name: i for i, name in enumerate(names)}
        result = ModelRunnerOutput(names, places, tokens, kv_connector_output=self.worker.take_report())
        if ends and order is not None:
            self.ended += 1
            self._void_epoch = order.epoch
        if ends or void:
            setattr(result, ENDED_EARLY, True)
        return result, computed

    def _copies(self) -> bool:
        """Whether the thread has more to copy beside this step, or has not finished what it began."""
        with self.copier._change:
            transfers = self.copier.transfers
            return (transfers.queue and transfers.allowed != 0) or any(job.done < job.begun for job in transfers.jobs.values())

    def _take_tables(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
            self._tokens[new.req_id] = list(self.live[new.req_id].all_token_ids)
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            given = list(blocks[0]) if blocks else []
            self._tables[name] = given if name in cached.resumed_req_ids else self._tables[name] + given
            if name in cached.resumed_req_ids:
                self._tokens[name], self._hashes[name] = list(self.live[name].all_token_ids), []

    def _forward(self, name: str, tokens: int, garbage: bool) -> None:
        table = self._tables[name]
        before = self.live[name].num_computed_tokens - tokens
        hashes = self._hashes[name]
        for token in self._tokens[name][len(hashes) : before + tokens]:
            hashes.append(hash((hashes[-1] if hashes else 0, token)) & (2**63 - 1))
        run = partial(self._layers, name, list(table), hashes[: before + tokens], before, garbage)
        (run if self.device is None else partial(self.device.launch, run))()

    def _layers(self, name: str, table: list[int], hashes: list[int], before: int, garbage: bool) -> None:
        for at in range(before):
            self.read += 1
            found = int(self.kv[table[at // BLOCK], at % BLOCK])
            # In a step that ends early it may read a prefix that another request was to compute in that step. Its output is dropped.
            assert garbage or found == hashes[at], f"{name} reads wrong KV at token {at} of {before}"
        for at in range(before, len(hashes)):
            self.kv[table[at // BLOCK], at % BLOCK] = 1 if garbage else hashes[at]

    def _sampled(self, name: str) -> list[int]:
        """The next token, where the step computes the last one that is known."""
        known = self._tokens[name]
        if self.live[name].num_computed_tokens < len(known):
            return []
        known.append(self.rng.randrange(1000))
        return known[-1:]

    def settle(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(20_000):
            if not self.scheduler.has_requests() and not self._flight:
                return
            self.step()
        raise AssertionError(f"{len(self.live)} requests never end; {self.planner.done}")
