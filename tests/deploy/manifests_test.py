#!/usr/bin/env python3
"""Checks the files of deploy/ against each other, and against the schemas and tools of the programs
that read them.

Checks without their tool are skipped; the reason names it. Exit status: 0 passed, 1 failed, 77
skipped altogether.
"""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    print("skipped: PyYAML is not installed (apt-get install python3-yaml)")
    sys.exit(77)
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

DEPLOY = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "deploy")
KUBERNETES = "1.29"  # the oldest version with a schema


def path(*parts):
    return os.path.join(DEPLOY, *parts)


def read(*parts):
    with open(path(*parts), encoding="utf-8") as file:
        return file.read()


def documents(*parts):
    return [document for document in yaml.safe_load_all(read(*parts)) if document]


def tool(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def flags(arguments):
    """--name=value as numbers or text, by name; None for a --name alone."""
    return dict(re.fullmatch(r"--([a-z-]+)(?:=(.*))?", argument).groups() for argument in arguments)


def run(*command, **environment):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, **environment})


def base():
    """The objects of deploy/k8s/base by kind and name, as listed in its kustomization."""
    objects = {}
    for resource in documents("k8s", "base", "kustomization.yaml")[0]["resources"]:
        for item in documents("k8s", "base", resource):
            objects[item["kind"], item["metadata"]["name"]] = item
    return objects


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.objects = base()
        self.deployment = self.objects["Deployment", "hydrant"]["spec"]
        self.pod = self.deployment["template"]["spec"]
        self.container = self.pod["containers"][0]
        self.labels = self.deployment["template"]["metadata"]["labels"]

    def test_every_file_is_listed(self):
        listed = set(documents("k8s", "base", "kustomization.yaml")[0]["resources"]) | {"kustomization.yaml"}
        self.assertEqual(listed, set(os.listdir(path("k8s", "base"))))
        for patch in documents("k8s", "gpu", "kustomization.yaml")[0]["patches"]:
            self.assertTrue(os.path.exists(path("k8s", "gpu", patch["path"])), patch)

    def test_everything_selects_the_pods(self):
        selectors = {"Deployment": self.deployment["selector"]["matchLabels"],
                     "PodDisruptionBudget": self.objects["PodDisruptionBudget", "hydrant"]["spec"]["selector"]["matchLabels"],
                     "Service": self.objects["Service", "hydrant"]["spec"]["selector"],
                     "headless": self.objects["Service", "hydrant-headless"]["spec"]["selector"]}
        for name, selector in selectors.items():
            self.assertTrue(selector and selector.items() <= self.labels.items(), name)
        self.assertEqual(self.objects["Service", "hydrant-headless"]["spec"]["clusterIP"], "None")

    def test_ports_are_those_that_the_daemon_listens_on(self):
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        given = flags(self.container["args"])
        self.assertEqual(given["listen"], f"0.0.0.0:{ports['grpc']}")
        self.assertEqual(given["metrics-listen"], f"0.0.0.0:{ports['metrics']}")
        for service in ("hydrant", "hydrant-headless"):
            for port in self.objects["Service", service]["spec"]["ports"]:
                self.assertIn(port["targetPort"], ports)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            self.assertIn(self.container[probe]["httpGet"]["port"], ports)
        self.assertEqual(self.container["livenessProbe"]["httpGet"]["path"], "/livez")
        self.assertEqual(self.container["readinessProbe"]["httpGet"]["path"], "/readyz")
        annotations = self.deployment["template"]["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/port"], str(ports["metrics"]))

    def test_grace_is_longer_than_the_longest_stream(self):
        given = flags(self.container["args"])
        sleep = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        self.assertGreater(self.pod["terminationGracePeriodSeconds"],
                           sleep + int(given["drain-delay"]) + int(given["shutdown-timeout"]))
        readiness = self.container["readinessProbe"]
        self.assertGreater(sleep + int(given["drain-delay"]), readiness["periodSeconds"] * readiness["failureThreshold"])

    def test_pods_keep_to_the_restricted_standard(self):
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        self.assertEqual(self.pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
        context = self.container["securityContext"]
        self.assertTrue(context["readOnlyRootFilesystem"])
        self.assertFalse(context["allowPrivilegeEscalation"])
        self.assertEqual(context["capabilities"]["drop"], ["ALL"])
        with open(path("..", "Dockerfile"), encoding="utf-8") as file:
            user = re.search(r"^USER (\d+):(\d+)$", file.read(), re.MULTILINE)
        self.assertEqual(int(user[1]), self.pod["securityContext"]["runAsUser"])

    def test_the_schemas_of_kubernetes_accept_every_object(self):
        if kubernetes_validate is None:
            self.skipTest("kubernetes-validate is not installed (pip install kubernetes-validate)")
        objects = list(base().values())
        if tool("kubectl"):
            for overlay in ("base", "gpu", "secure"):
                objects += rendered(overlay)
        for item in objects:
            kubernetes_validate.validate(item, KUBERNETES, strict=True)
        wrong = {**self.objects["Deployment", "hydrant"], "spec": {**self.deployment, "replica": 2}}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, KUBERNETES, strict=True)

    def test_the_gpu_overlay_gives_each_replica_a_gpu(self):
        if not tool("kubectl"):
            self.skipTest("kubectl is not installed")
        deployment = next(item for item in rendered("gpu") if item["kind"] == "Deployment")
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertEqual(container["image"], "hydrant:cuda")
        self.assertEqual(container["args"], self.container["args"])


    def test_the_secure_overlay_takes_insecure_away(self):
        """Applied manually without kubectl: the patch relies on an argument's index."""
        patches = documents("k8s", "secure", "kustomization.yaml")[0]["patches"]
        self.assertTrue(os.path.exists(path("k8s", "secure", patches[0]["path"])))
        args = list(self.container["args"])
        for step in yaml.safe_load(patches[1]["patch"]):
            index = step["path"].rsplit("/", 1)[1]
            if step["op"] == "test":
                self.assertEqual(args[int(index)], step["value"])
            elif step["op"] == "replace":
                args[int(index)] = step["value"]
            else:
                self.assertEqual((step["op"], index), ("add", "-"))
                args.append(step["value"])
        if tool("kubectl"):
            deployment = next(item for item in rendered("secure") if item["kind"] == "Deployment")
            self.assertEqual(deployment["spec"]["template"]["spec"]["containers"][0]["args"], args)
        given = flags(args)
        self.assertNotIn("insecure", given)
        secure = documents("k8s", "secure", patches[0]["path"])[0]["spec"]["template"]["spec"]
        mounts = [mount["mountPath"] for mount in secure["containers"][0]["volumeMounts"]]
        for flag in ("tls-certificate", "tls-key", "auth-tokens"):
            self.assertIn(os.path.dirname(given[flag]), mounts)


class Gateway(unittest.TestCase):
    def setUp(self):
        self.objects = {}
        for resource in documents("k8s", "gateway", "kustomization.yaml")[0]["resources"]:
            if resource.endswith(".yaml"):
                for item in documents("k8s", "gateway", resource):
                    self.objects[item["kind"], item["metadata"]["name"]] = item
        self.pool = self.objects["InferencePool", "hydrant"]["spec"]
        self.picker = self.objects["Deployment", "hydrant-picker"]["spec"]["template"]["spec"]["containers"][0]
        self.config = documents("k8s", "gateway", "picker-config.yaml")[0]
        deployment = base()["Deployment", "hydrant"]["spec"]["template"]
        self.labels = deployment["metadata"]["labels"]
        self.ports = {port["name"]: port["containerPort"] for port in deployment["spec"]["containers"][0]["ports"]}

    def test_every_file_is_listed(self):
        kustomization = documents("k8s", "gateway", "kustomization.yaml")[0]
        listed = set(kustomization["resources"]) | set(kustomization["configMapGenerator"][0]["files"]) | {"kustomization.yaml"}
        self.assertEqual(listed - {"../base"}, set(os.listdir(path("k8s", "gateway"))))

    def test_pool_and_picker_reach_the_replicas(self):
        self.assertLessEqual(self.pool["selector"]["matchLabels"].items(), self.labels.items())
        self.assertEqual([port["number"] for port in self.pool["targetPorts"]], [self.ports["grpc"]])
        given = flags(self.picker["args"])
        self.assertEqual(given["model-server-metrics-port"], str(self.ports["metrics"]))
        self.assertIn(("InferencePool", given["pool-name"]), self.objects)
        picker = self.objects["Service", self.pool["endpointPickerRef"]["name"]]["spec"]
        self.assertEqual([port["port"] for port in picker["ports"]], [self.pool["endpointPickerRef"]["port"]["number"]])
        self.assertEqual(given["grpc-port"], str(self.pool["endpointPickerRef"]["port"]["number"]))
        self.assertEqual(given["config-file"].rsplit("/", 1),
                         [self.picker["volumeMounts"][0]["mountPath"], "picker-config.yaml"])

    def test_the_route_names_calls_of_the_contract_and_backends_that_exist(self):
        with open(path("..", "proto", "vllm", "grpc", "engine", "engine.proto"), encoding="utf-8") as file:
            contract = file.read()
        package = re.search(r"^package (\S+);", contract, re.MULTILINE)[1]
        service = re.search(r"^service (\w+)", contract, re.MULTILINE)[1]
        calls = {f"/{package}.{service}/{call}" for call in re.findall(r"rpc (\w+)", contract)}
        services = {name: item["spec"] for (kind, name), item in base().items() if kind == "Service"}
        for rule in self.objects["HTTPRoute", "hydrant"]["spec"]["rules"]:
            for match in rule["matches"]:
                if match["path"]["type"] == "Exact":
                    self.assertIn(match["path"]["value"], calls)
            for backend in rule["backendRefs"]:
                if "kind" in backend:
                    self.assertIn((backend["kind"], backend["name"]), self.objects)
                else:
                    self.assertIn(backend["port"], [port["port"] for port in services[backend["name"]]["ports"]])

    def test_the_picker_reads_metrics_that_the_daemon_has(self):
        with open(path("..", "server", "apis", "metrics.cc"), encoding="utf-8") as file:
            metrics = file.read()
        extractor = next(plugin for plugin in self.config["plugins"] if plugin["type"] == "core-metrics-extractor")["parameters"]
        engine = extractor["engineConfigs"][0]
        self.assertEqual(engine["name"], extractor["defaultEngine"])
        names = [value for key, value in engine.items() if key.endswith("Spec") and value]
        self.assertEqual(len(names), 4)
        for name in names:
            self.assertIn(f'"{name}"', metrics)

    def test_the_picker_has_what_its_profile_refers_to(self):
        plugins = {plugin["type"] for plugin in self.config["plugins"]}
        for section in (self.config["requestHandler"]["parsers"], self.config["schedulingProfiles"][0]["plugins"]):
            for reference in section:
                self.assertIn(reference["pluginRef"], plugins)

    def test_the_schemas_of_kubernetes_accept_its_objects(self):
        if kubernetes_validate is None:
            self.skipTest("kubernetes-validate is not installed (pip install kubernetes-validate)")
        for (kind, _), item in self.objects.items():
            if kind not in ("InferencePool", "HTTPRoute"):
                kubernetes_validate.validate(item, KUBERNETES, strict=True)

    def test_kustomize_renders_it(self):
        if not tool("kubectl"):
            self.skipTest("kubectl is not installed")
        objects = {(item["kind"], item["metadata"]["name"]): item for item in rendered("gateway")}
        config = objects["Deployment", "hydrant-picker"]["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
        self.assertEqual(yaml.safe_load(objects["ConfigMap", config]["data"]["picker-config.yaml"]), self.config)
        self.assertEqual({item["metadata"].get("namespace", "hydrant") for item in objects.values()}, {"hydrant"})


def rendered(overlay):
    done = run(tool("kubectl"), "kustomize", path("k8s", overlay))
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    return list(yaml.safe_load_all(done.stdout))


class Compose(unittest.TestCase):
    def setUp(self):
        self.services = documents("compose.yaml")[0]["services"]
        self.replicas = {name: service for name, service in self.services.items() if name.startswith("hydrant-")}

    def test_files_that_are_mounted_exist(self):
        for name, service in self.services.items():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("./"):
                    self.assertTrue(os.path.exists(path(source)), f"{name}: {volume}")

    def test_two_replicas_may_end_their_streams(self):
        self.assertEqual(len(self.replicas), 2)
        for service in self.replicas.values():
            given = flags(service["command"])
            self.assertGreater(seconds(service["stop_grace_period"]),
                               int(given["drain-delay"]) + int(given["shutdown-timeout"]))

    def test_the_balancer_and_prometheus_know_the_replicas(self):
        given = flags(self.replicas["hydrant-1"]["command"])
        port, probe = given["listen"].split(":")[1], given["metrics-listen"].split(":")[1]
        haproxy = read("haproxy", "haproxy.cfg")
        servers = re.findall(r'^  server (\S+) "\$\{\w+-(\S+?):(\d+)\}" .*port "\$\{\w+-(\d+)\}"$', haproxy, re.MULTILINE)
        self.assertEqual(servers, [(name, name, port, probe) for name in self.replicas])
        self.assertEqual(re.findall(r"^    server (\S+):(\d+) ", read("nginx", "nginx.conf"), re.MULTILINE),
                         [(name, port) for name in self.replicas])
        targets = json.loads(read("prometheus", "targets", "hydrant.json"))[0]["targets"]
        self.assertEqual(targets, [f"{name}:{probe}" for name in self.replicas])
        status = json.loads(read("prometheus", "targets", "haproxy.json"))[0]["targets"][0]
        self.assertIn(status.split(":")[0], self.services)
        self.assertIn(f'bind "${{HYDRANT_STATUS_BIND-:{status.split(":")[1]}}}"', haproxy)

    def test_the_drain_delay_is_longer_than_the_balancer_takes_to_notice(self):
        line = re.search(r"inter (\d+)ms fall (\d+)", read("haproxy", "haproxy.cfg"))
        for service in self.replicas.values():
            self.assertGreater(int(flags(service["command"])["drain-delay"]) * 1000, int(line[1]) * int(line[2]))


class Tools(unittest.TestCase):
    def accepts(self, name, *arguments, **environment):
        if not tool(name):
            self.skipTest(f"{name} is not installed")
        done = run(tool(name), *arguments, **environment)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_haproxy(self):
        self.accepts("haproxy", "-c", "-f", path("haproxy", "haproxy.cfg"), HYDRANT_1="127.0.0.1:50051",
                     HYDRANT_2="127.0.0.1:50052")

    def test_nginx(self):
        with tempfile.TemporaryDirectory() as folder:  # it resolves the names
            text = re.sub(r"server hydrant-\d:", "server 127.0.0.1:", read("nginx", "nginx.conf")).replace("/tmp/", f"{folder}/")
            with open(f"{folder}/nginx.conf", "w", encoding="utf-8") as file:
                file.write(text)
            self.accepts("nginx", "-t", "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf")

    def test_prometheus(self):
        self.accepts("promtool", "check", "config", path("prometheus", "prometheus.yml"))


class SystemdUnit(unittest.TestCase):
    def test_reload_needs_no_program_but_the_shell(self):
        command = re.search(r"^ExecReload=(.*)$", read("debian", "hydrantd.service"), re.MULTILINE)[1]
        daemon = subprocess.Popen(["sleep", "60"])
        try:
            # Runs the command as systemd would, with MAINPID set and an empty PATH.
            arguments = shlex.split(command)
            self.assertEqual(arguments[0], "/bin/sh", "a program of which package?")
            subprocess.run(arguments, env={"MAINPID": str(daemon.pid), "PATH": "/nowhere"}, check=True)
            self.assertEqual(daemon.wait(timeout=30), -signal.SIGHUP)
        finally:
            daemon.kill()


if __name__ == "__main__":
    unittest.main(verbosity=2)
