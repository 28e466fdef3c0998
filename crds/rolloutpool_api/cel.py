"""The CEL rules of the CRD: what the API server refuses, and what it says to do instead.

Each entry is (expression, message). The expression speaks of the object that the rule is attached to; a rule on an
object that has a default may not rely on fields that have one, since the API server checks the bare default too.
"""

from __future__ import annotations

from rolloutpool_api.labels import ENGINE_PORT, MAX_POOL_NAME, NIXL_PORT, ROUTER_PORT

Rules = tuple[tuple[str, str], ...]

OPERATOR_FLAGS = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--kv-transfer-config",
    "--kv-events-config",
    "--block-size",
    "--max-model-len",
)
"""vLLM flags that the operator sets from the spec; extraArgs may not repeat them."""
_FLAGS = ", ".join(f"'{flag}'" for flag in OPERATOR_FLAGS)

OBJECT: Rules = (
    (
        f"self.metadata.name.size() <= {MAX_POOL_NAME}",
        f"metadata.name may have at most {MAX_POOL_NAME} characters: its engines' names are longer",
    ),
    (
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name becomes part of Service names: use lower-case letters, digits and -, a letter first",
    ),
)

SPEC: Rules = (
    (
        "self.workloads.map(w, w.share).sum() > 0.999 && self.workloads.map(w, w.share).sum() < 1.001",
        "the shares of spec.workloads must sum to 1: change spec.workloads[].share",
    ),
    (
        "self.planning.mode == 'Disaggregated' || !has(self.planning.allowedParallelism) || self.planning.allowedParallelism.exists(p, p.tensorParallel * p.pipelineParallel <= self.gpus.budget)",
        "spec.gpus.budget is below the smallest replica in spec.planning.allowedParallelism (tensorParallel x pipelineParallel GPUs): raise the budget or allow a smaller one",
    ),
    (
        "self.planning.mode != 'Disaggregated' || self.gpus.budget >= 2",
        "planning mode Disaggregated needs a prefill and a decode replica: set spec.gpus.budget to 2 or more",
    ),
    (
        "self.planning.mode != 'Disaggregated' || !has(self.planning.allowedParallelism) || self.planning.allowedParallelism.exists(p, 2 * p.tensorParallel * p.pipelineParallel <= self.gpus.budget)",
        "spec.gpus.budget is below twice the smallest replica in spec.planning.allowedParallelism: planning mode Disaggregated needs a prefill and a decode replica, so raise the budget",
    ),
    (
        "!has(self.planning.replicas) || self.planning.replicas.map(g, g.replicas * g.tensorParallel * g.pipelineParallel).sum() <= self.gpus.budget",
        "spec.planning.replicas asks for more GPUs than spec.gpus.budget: lower the replicas or raise the budget",
    ),
    (
        "!has(self.planning.replicas) || self.planning.replicas.exists(g, g.role == 'prefill') == self.planning.replicas.exists(g, g.role == 'decode')",
        "spec.planning.replicas needs prefill and decode replicas together: add the other role, or use role aggregated",
    ),
    (
        "!has(self.model.maxModelLen) || self.workloads.all(w, w.priors.promptTokens.p50 + w.priors.outputTokens.p50 <= self.model.maxModelLen)",
        "the median prompt and output in spec.workloads[].priors are longer than spec.model.maxModelLen: raise it, or set shorter priors",
    ),
    (
        "self.planning.objective == 'MaximizeThroughput' || (has(self.slo) && has(self.slo.demand))",
        "planning objectives MeetSLO and MinimizeGPUs need spec.slo.demand: set requestsPerSecond or concurrentSessions",
    ),
    (
        "self.model.name == oldSelf.model.name",
        "spec.model.name is immutable (trainers address the pool by it): create another RolloutPool",
    ),
    (
        "self.gpus.resourceName == oldSelf.gpus.resourceName",
        "spec.gpus.resourceName is immutable: create another RolloutPool",
    ),
    (
        "!self.engine.rl.enabled || self.router.replicas == 1",
        "spec.engine.rl.enabled needs spec.router.replicas 1: one router holds the requests while the trainer changes the weights",
    ),
)

MODEL: Rules = (
    (
        "!has(self.source) || !self.source.startsWith('pvc://') || self.source.matches('^pvc://[a-z0-9.-]+/.+')",
        "spec.model.source of a volume must read pvc://CLAIM/PATH",
    ),
)

ENGINE: Rules = (
    (
        f"!has(self.extraArgs) || self.extraArgs.all(a, ![{_FLAGS}].exists(f, a == f || a.startsWith(f + '=')))",
        "spec.engine.extraArgs may not set what the operator sets from the spec: " + " ".join(OPERATOR_FLAGS),
    ),
    (
        "!has(self.env) || self.env.all(e, !e.name.startsWith('VLLM_NIXL_SIDE_CHANNEL_'))",
        "spec.engine.env may not set VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT: the operator sets them to the pod's address",
    ),
    (
        "!has(self.resources) || !has(self.resources.limits) || self.resources.limits.all(name, !name.endsWith('/gpu'))",
        "spec.engine.resources.limits may not name GPUs: an engine gets those of the plan, out of spec.gpus.budget",
    ),
)

ENV: Rules = (
    (
        "!(has(self.value) && has(self.valueFrom))",
        "an env entry takes value or valueFrom, not both: remove one",
    ),
)

RL: Rules = (
    (
        "!(has(self.enabled) && self.enabled) || has(self.tokenSecretRef)",
        "spec.engine.rl.enabled needs spec.engine.rl.tokenSecretRef: name a Secret with the token for weight synchronisation",
    ),
    (
        f"!has(self.port) || self.port != {ROUTER_PORT}",
        "spec.engine.rl.port is the router's own port for requests: choose another",
    ),
)

KV_EVENTS: Rules = (
    (
        "!has(self.port) || !has(self.replayPort) || self.port != self.replayPort",
        "spec.engine.kvEvents.port and replayPort must differ",
    ),
    (
        f"!has(self.port) || !has(self.replayPort) || ![{ENGINE_PORT}, {NIXL_PORT}].exists(p, p == self.port || p == self.replayPort)",
        f"spec.engine.kvEvents.port and replayPort may not be {ENGINE_PORT} or {NIXL_PORT}: engines use those for requests and KV transfer",
    ),
)

MODEL_CACHE: Rules = (
    (
        "!(has(self.claimName) && has(self.emptyDir))",
        "spec.engine.modelCache takes claimName or emptyDir, not both: remove one",
    ),
)

TOKEN_PRIOR: Rules = (("self.p95 >= self.p50", "a token prior needs p95 >= p50: swap or correct the two"),)

DEMAND: Rules = (
    (
        "has(self.requestsPerSecond) != has(self.concurrentSessions)",
        "spec.slo.demand takes exactly one of requestsPerSecond and concurrentSessions",
    ),
)

PROFILE: Rules = (
    (
        "has(self.builtin) != has(self.configMapRef)",
        "spec.planning.profile takes exactly one of builtin and configMapRef",
    ),
)

PLANNING: Rules = (
    (
        "(has(self.mode) && self.mode == 'Manual') == has(self.replicas)",
        "spec.planning.replicas is for planning mode Manual, and Manual needs it: set both or neither",
    ),
)
