#!/usr/bin/env python3
"""Renders deploy/helm/hydrant with Helm's own library and compares the result with deploy/k8s/base,
the daemon's flags and the schemas of Kubernetes.

The library (helm-python-sdk), PyYAML and kubernetes-validate come from PyPI into OUT, a virtual environment.
Exit status: 0 passed, 1 failed, 77 skipped: they are unavailable.
"""
import argparse
import pathlib
import re
import sys
import unittest

from package_index import ROOT, SKIPPED, environment, run_tests

CHART = ROOT / "deploy" / "helm" / "hydrant"
PACKAGES = ["helm-python-sdk==0.2.2", "PyYAML", "kubernetes-validate"]
KUBERNETES = "1.29"

EVERYTHING = {
    "image": {"tag": "cuda", "pullSecrets": [{"name": "registry"}]},
    "replicas": 3,
    "model": {"path": "hf:ORG/NAME", "servedName": "small", "hubCache": {"emptyDir": {}}, "hubTokenSecret": "hub"},
    "cachePolicy": {"default": "h2o:cache_ratio=0.2", "underPressure": "echo:cache_ratio=0.5",
                    "listenAs": [{"name": "echo", "port": 50052, "policy": "echo:cache_ratio=0.2"}]},
    "memory": {"kvCache": "8G", "prefixCache": "2G", "contexts": "1G", "swapSpace": "4G"},
    "targets": {"ttft": 5, "tpot": 0.1},
    "extraArgs": ["--tenant-weights=gold=3"],
    "env": [{"name": "HYDRANT_CONTEXT_STORE", "value": "redis://redis"}],
    "gpus": 1,
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"kind": "gpu"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "metrics": {"annotations": False, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "networkPolicy": {"enabled": True, "clients": [{"podSelector": {"matchLabels": {"app": "gateway"}}}],
                      "metrics": [{"namespaceSelector": {}}]},
}
SECURED = {"tls": {"secretName": "certificate", "clientCa": True}, "tokens": {"secretName": "tokens"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    python = environment(parser.parse_args().out.resolve(), PACKAGES)
    return SKIPPED if python is None else run_tests(python, __file__)


def render(values, name="hydrant"):
    """The objects by kind and name."""
    import helm_python
    import yaml

    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=name, namespace="test")
    objects = [item for path, text in files.items() if not path.endswith("NOTES.txt")
               for item in yaml.safe_load_all(text) if item]
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def base(name):
    import yaml

    return next(yaml.safe_load_all((ROOT / "deploy" / "k8s" / "base" / name).read_text(encoding="utf-8")))


def pod_of(objects, name="hydrant"):
    return objects["Deployment", name]["spec"]["template"]["spec"]


def args_of(objects, name="hydrant"):
    """By flag; None for a flag without a value."""
    return dict(re.fullmatch(r"--([a-z-]+)(?:=(.*))?", each).groups() for each in pod_of(objects, name)["containers"][0]["args"])


class Helm(unittest.TestCase):
    def test_lint(self):
        import helm_python

        found = helm_python.lint(str(CHART))
        self.assertEqual(found["errors"], [])
        self.assertEqual([each["error"] for each in found["messages"] if each["error"] != "icon is recommended"], [])

    def test_without_values_it_is_the_base(self):
        objects = render({})
        own, theirs = objects["Deployment", "hydrant"]["spec"], base("deployment.yaml")["spec"]
        for spec in (own, theirs):
            labels = spec["template"]["metadata"]["labels"]
            for each in (labels, spec["selector"]["matchLabels"],
                         spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]):
                each.pop("app.kubernetes.io/instance", None)
            container = spec["template"]["spec"]["containers"][0]
            container["image"] = container["image"].split(":")[0]
            container.pop("imagePullPolicy", None)
        self.assertEqual(own, theirs)
        for name, file in (("hydrant", "service.yaml"), ("hydrant-headless", "headless-service.yaml")):
            ours, other = objects["Service", name]["spec"], base(file)["spec"]
            self.assertEqual(ours.get("clusterIP"), other.get("clusterIP"))
            self.assertEqual([(port["name"], port["port"], port["targetPort"]) for port in ours["ports"]],
                             [(port["name"], port["port"], port["targetPort"]) for port in other["ports"]])
        self.assertEqual(objects["PodDisruptionBudget", "hydrant"]["spec"]["maxUnavailable"],
                         base("disruption-budget.yaml")["spec"]["maxUnavailable"])
        self.assertEqual({kind for kind, _ in objects}, {"Deployment", "Service", "PodDisruptionBudget"})

    def test_every_value_reaches_the_daemon(self):
        args = args_of(render(EVERYTHING, "a"), "a-hydrant")
        self.assertLessEqual({
            "model": "hf:ORG/NAME", "served-model-name": "small", "default-cache-policy": "h2o:cache_ratio=0.2",
            "policy-under-pressure": "echo:cache_ratio=0.5", "listen-as": "0.0.0.0:50052=echo:cache_ratio=0.2",
            "kv-cache-memory-bytes": "8G", "prefix-cache-memory-bytes": "2G", "context-memory-bytes": "1G", "swap-space": "4G",
            "target-ttft": "5", "target-tpot": "0.1", "tenant-weights": "gold=3"}.items(), args.items())
        self.assertEqual({"tls-certificate": "/etc/hydrant/tls/tls.crt", "tls-key": "/etc/hydrant/tls/tls.key", "tls-client-ca": "/etc/hydrant/tls/ca.crt",
                          "auth-tokens": "/etc/hydrant/tokens/tokens.yaml"}.items() - args_of(render(SECURED)).items(), set())

    def test_the_daemon_knows_every_flag(self):
        sources = "".join((ROOT / "server" / name).read_text(encoding="utf-8") for name in ("startup/command_line.cc", "auth/security_options.cc"))
        known = set(re.findall(r'"--([a-z-]+)', sources))
        self.assertEqual((set(args_of(render(EVERYTHING))) | set(args_of(render(SECURED)))) - known, set())
        self.assertIn("insecure", args_of(render({})))
        self.assertNotIn("insecure", args_of(render(SECURED)))

    def test_the_grace_is_longer_than_all_that_comes_before(self):
        pod = pod_of(render({"drain": {"preStopSeconds": 5, "delaySeconds": 7, "timeoutSeconds": 1000}}))
        self.assertGreater(pod["terminationGracePeriodSeconds"], 1012)
        self.assertEqual(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"], ["sleep", "5"])

    def test_names_and_selectors_belong_together(self):
        objects = render(EVERYTHING, "a")
        self.assertEqual({name for _, name in objects}, {"a-hydrant", "a-hydrant-headless"})
        labels = objects["Deployment", "a-hydrant"]["spec"]["template"]["metadata"]["labels"].items()
        for selector in (objects["Service", "a-hydrant"]["spec"]["selector"],
                         objects["Service", "a-hydrant-headless"]["spec"]["selector"],
                         objects["NetworkPolicy", "a-hydrant"]["spec"]["podSelector"]["matchLabels"],
                         objects["PodDisruptionBudget", "a-hydrant"]["spec"]["selector"]["matchLabels"]):
            self.assertTrue(selector and selector.items() <= labels, selector)
        monitor = objects["ServiceMonitor", "a-hydrant"]
        self.assertEqual(monitor["metadata"]["labels"]["release"], "prometheus")
        scraped = objects["Service", "a-hydrant"]
        self.assertLessEqual(monitor["spec"]["selector"]["matchLabels"].items(), scraped["metadata"]["labels"].items())
        self.assertIn(monitor["spec"]["endpoints"][0]["port"], [port["name"] for port in scraped["spec"]["ports"]])

    def test_volumes_are_those_that_are_mounted(self):
        for values in ({}, EVERYTHING, SECURED, {**EVERYTHING, **SECURED}):
            pod = pod_of(render(values))
            self.assertEqual({volume["name"] for volume in pod["volumes"]},
                             {mount["name"] for mount in pod["containers"][0]["volumeMounts"]})
        self.assertEqual(pod["containers"][0]["resources"]["limits"], {"memory": "8Gi", "nvidia.com/gpu": "1"})

    def test_the_schemas_of_kubernetes_accept_every_object(self):
        import kubernetes_validate

        for values in ({}, EVERYTHING, SECURED, {"metrics": {"annotations": False}}):
            for (kind, _), item in render(values).items():
                if kind != "ServiceMonitor":
                    kubernetes_validate.validate(item, KUBERNETES, strict=True)

    def test_wrong_values_are_refused(self):
        import helm_python

        for values in ({"replica": 2}, {"replicas": "two"}, {"ports": {"grpc": 70000}}, {"tls": {"clientCa": True}},
                       {"memory": {"kvCache": "8 gigabytes"}}, {"cachePolicy": {"listenAs": [{"port": 1}]}},
                       {"extraArgs": ["model.gguf"]}):
            with self.assertRaises(helm_python.HelmError, msg=values):
                with helm_python.Chart.load(str(CHART)) as chart:
                    chart.validate_schema(values)
        with helm_python.Chart.load(str(CHART)) as chart:
            for values in ({}, EVERYTHING, SECURED):
                chart.validate_schema(values)


if __name__ == "__main__":
    sys.exit(main())
