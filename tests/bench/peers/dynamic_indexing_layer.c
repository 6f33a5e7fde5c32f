// A Vulkan layer for one purpose: Dawn takes no adapter that can't index arrays of images
// dynamically, and lavapipe up to Mesa 22 says that it can't. Compute shaders on buffers have no
// such arrays. The layer claims the features when it is asked, and takes the claim back when a
// device is made, so that the driver is never asked for what it lacks.
//
// Source: Vulkan-Loader, LoaderLayerInterface.md (interface version 2).
#include <stddef.h>
#include <string.h>

#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

// Down the chain of one instance and one device, which is all that a benchmark makes. The functions
// are looked up when the instance is made: later the same look-up would lead back to this layer.
static struct {
    VkInstance instance;
    PFN_vkGetInstanceProcAddr instance_proc;
    PFN_vkGetDeviceProcAddr device_proc;
    PFN_vkGetPhysicalDeviceFeatures features;
    PFN_vkGetPhysicalDeviceFeatures2 features2, features2_khr;
} below;

static PFN_vkVoidFunction below_instance(const char *name) {
    return below.instance_proc(below.instance, name);
}

// The four claims, as byte offsets into VkPhysicalDeviceFeatures.
static const size_t CLAIMS[] = {
    offsetof(VkPhysicalDeviceFeatures, shaderUniformBufferArrayDynamicIndexing),
    offsetof(VkPhysicalDeviceFeatures, shaderSampledImageArrayDynamicIndexing),
    offsetof(VkPhysicalDeviceFeatures, shaderStorageBufferArrayDynamicIndexing),
    offsetof(VkPhysicalDeviceFeatures, shaderStorageImageArrayDynamicIndexing),
};
#define CLAIM(features, i) (*(VkBool32 *)((char *)(features) + CLAIMS[i]))
#define CLAIM_COUNT (sizeof CLAIMS / sizeof CLAIMS[0])

static void claim(VkPhysicalDeviceFeatures *features) {
    for (size_t i = 0; i < CLAIM_COUNT; i++) CLAIM(features, i) = VK_TRUE;
}

static void take_back(VkPhysicalDevice adapter, VkPhysicalDeviceFeatures *wanted) {
    VkPhysicalDeviceFeatures real;
    below.features(adapter, &real);
    for (size_t i = 0; i < CLAIM_COUNT; i++)
        if (!CLAIM(&real, i)) CLAIM(wanted, i) = VK_FALSE;
}

static VKAPI_ATTR void VKAPI_CALL get_features(VkPhysicalDevice adapter,
                                               VkPhysicalDeviceFeatures *features) {
    below.features(adapter, features);
    claim(features);
}

static VKAPI_ATTR void VKAPI_CALL get_features2(VkPhysicalDevice adapter,
                                                VkPhysicalDeviceFeatures2 *features) {
    below.features2(adapter, features);
    claim(&features->features);
}

static VKAPI_ATTR void VKAPI_CALL get_features2_khr(VkPhysicalDevice adapter,
                                                    VkPhysicalDeviceFeatures2 *features) {
    below.features2_khr(adapter, features);
    claim(&features->features);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkInstance *made) {
    const VkLayerInstanceCreateInfo *link = info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO ||
                    link->function != VK_LAYER_LINK_INFO))
        link = link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    below.instance_proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    ((VkLayerInstanceCreateInfo *)link)->u.pLayerInfo = link->u.pLayerInfo->pNext;
    below.instance = VK_NULL_HANDLE;
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)below_instance("vkCreateInstance");
    VkResult result = create(info, allocator, made);
    if (result != VK_SUCCESS) return result;
    below.instance = *made;
    below.features =
        (PFN_vkGetPhysicalDeviceFeatures)below_instance("vkGetPhysicalDeviceFeatures");
    below.features2 =
        (PFN_vkGetPhysicalDeviceFeatures2)below_instance("vkGetPhysicalDeviceFeatures2");
    below.features2_khr =
        (PFN_vkGetPhysicalDeviceFeatures2)below_instance("vkGetPhysicalDeviceFeatures2KHR");
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice adapter,
                                                    const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkDevice *made) {
    const VkLayerDeviceCreateInfo *link = info->pNext;
    while (link && (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO ||
                    link->function != VK_LAYER_LINK_INFO))
        link = link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetInstanceProcAddr proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    below.device_proc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    ((VkLayerDeviceCreateInfo *)link)->u.pLayerInfo = link->u.pLayerInfo->pNext;

    VkDeviceCreateInfo asked = *info;
    VkPhysicalDeviceFeatures features;
    if (info->pEnabledFeatures) {
        features = *info->pEnabledFeatures;
        take_back(adapter, &features);
        asked.pEnabledFeatures = &features;
    }
    for (VkBaseOutStructure *next = (VkBaseOutStructure *)info->pNext; next; next = next->pNext)
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
            take_back(adapter, &((VkPhysicalDeviceFeatures2 *)next)->features);
    PFN_vkCreateDevice create = (PFN_vkCreateDevice)proc(below.instance, "vkCreateDevice");
    return create(adapter, &asked, allocator, made);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char *name) {
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (PFN_vkVoidFunction)device_proc;
    return below.device_proc ? below.device_proc(device, name) : NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance,
                                                              const char *name) {
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } ours[] = {
        {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)instance_proc},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_proc},
        {"vkCreateInstance", (PFN_vkVoidFunction)create_instance},
        {"vkCreateDevice", (PFN_vkVoidFunction)create_device},
        {"vkGetPhysicalDeviceFeatures", (PFN_vkVoidFunction)get_features},
        {"vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction)get_features2},
        {"vkGetPhysicalDeviceFeatures2KHR", (PFN_vkVoidFunction)get_features2_khr},
    };
    if (strcmp(name, "vkGetPhysicalDeviceFeatures2") == 0 && !below.features2) return NULL;
    if (strcmp(name, "vkGetPhysicalDeviceFeatures2KHR") == 0 && !below.features2_khr) return NULL;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (strcmp(name, ours[i].name) == 0) return ours[i].function;
    return below.instance_proc ? below.instance_proc(instance, name) : NULL;
}

__attribute__((visibility("default"))) VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version) {
    if (version->loaderLayerInterfaceVersion > 2) version->loaderLayerInterfaceVersion = 2;
    version->pfnGetInstanceProcAddr = instance_proc;
    version->pfnGetDeviceProcAddr = device_proc;
    version->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
