// Command netpol enforces NetworkPolicy for the pods of one node: the controller of
// kube-network-policies, told of its API server by a kubeconfig instead of by a pod's mounts.
// Its own nftables rules need the kernel's nft "queue" expression; where that is missing their
// sync fails (logged, not fatal) and policy.py queues the same packets with iptables' NFQUEUE.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of a kubeconfig")
	node := flag.String("node", "", "name of this node")
	queue := flag.Int("queue", 100, "netfilter queue to judge")
	klog.InitFlags(nil)
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(client,
		factory.Networking().V1().NetworkPolicies(), factory.Core().V1().Namespaces(), factory.Core().V1().Pods(),
		nil, nil, nil, nil,
		networkpolicy.Config{NodeName: *node, QueueID: *queue})
	if err != nil {
		klog.Fatal(err)
	}
	factory.Start(ctx.Done())
	if err := controller.Run(ctx); err != nil {
		klog.Fatal(err)
	}
}
