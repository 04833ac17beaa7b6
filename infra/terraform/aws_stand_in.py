"""moto's server, with what Terraform's provider asks of AWS and moto 5.2.5 leaves out.

SQS keeps a queue's policy when another attribute is set, and gives JSON back without blanks; KMS knows the period of a
rotation; a named query of Athena can be deleted.
"""

import json
import sys

from moto.athena.responses import AthenaResponse
from moto.kms.responses import KmsResponse
from moto.server import main
from moto.sqs.models import Queue

set_attributes, attributes = Queue._set_attributes, Queue.attributes.fget
enable_rotation, rotation_status = KmsResponse.enable_key_rotation, KmsResponse.get_key_rotation_status


def keep_policy(queue, given, now=None):
    policy = getattr(queue, "policy", None)
    set_attributes(queue, given, now)
    if "Policy" not in given:
        queue.policy = policy


def compact(queue):
    result = attributes(queue)
    if queue.redrive_policy:
        result["RedrivePolicy"] = json.dumps(queue.redrive_policy, separators=(",", ":"), sort_keys=True)
    return result


def key_of(request):
    return request.kms_backend.keys[request.kms_backend.get_key_id(request._get_param("KeyId"))]


def rotate(request):
    answer = enable_rotation(request)
    key_of(request).rotation_period = request._get_param("RotationPeriodInDays") or 365
    return answer


def rotates(request):
    answer = json.loads(rotation_status(request))
    if answer["KeyRotationEnabled"]:
        answer["RotationPeriodInDays"] = getattr(key_of(request), "rotation_period", 365)
    return json.dumps(answer)


def delete_named_query(request):
    request.athena_backend.named_queries.pop(request._get_param("NamedQueryId"), None)
    return "{}"


Queue._set_attributes, Queue.attributes = keep_policy, property(compact)
KmsResponse.enable_key_rotation, KmsResponse.get_key_rotation_status = rotate, rotates
AthenaResponse.delete_named_query = delete_named_query

if __name__ == "__main__":
    main(sys.argv[1:])
