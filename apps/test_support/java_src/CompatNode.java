// SPDX-License-Identifier: Apache-2.0

import com.ericsson.otp.erlang.OtpErlangAtom;
import com.ericsson.otp.erlang.OtpErlangObject;
import com.ericsson.otp.erlang.OtpErlangPid;
import com.ericsson.otp.erlang.OtpErlangTuple;
import com.ericsson.otp.erlang.OtpMbox;
import com.ericsson.otp.erlang.OtpNode;

/**
 * A Jinterface node, which tests use to check that Beamway nodes interoperate with Java.
 *
 * <p>usage: CompatNode NAME COOKIE [NODE]. It registers the mailbox {@code any}, connects to NODE if one is named, prints
 * "ready", and answers {Pid, Term} with {java, Term}. It exits at the end of its standard input, so that it is not left behind.
 */
public final class CompatNode {
    private CompatNode() {
    }

    public static void main(String[] args) throws Exception {
        OtpNode node = new OtpNode(args[0], args[1]);
        OtpMbox mailbox = node.createMbox("any");
        exitWithStandardInput();
        if (args.length > 2 && !node.ping(args[2], 10000)) {
            System.out.println("failed: no answer from " + args[2]);
            System.exit(1);
        }
        System.out.println("ready");
        while (true) {
            OtpErlangTuple request = (OtpErlangTuple) mailbox.receive();
            OtpErlangPid sender = (OtpErlangPid) request.elementAt(0);
            OtpErlangObject[] reply = {new OtpErlangAtom("java"), request.elementAt(1)};
            mailbox.send(sender, new OtpErlangTuple(reply));
        }
    }

    private static void exitWithStandardInput() {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException closed) {
                // A closed standard input has the same effect as its end.
            }
            System.exit(0);
        });
        watcher.setDaemon(true);
        watcher.start();
    }
}
